//! Completion queues, and the descriptor that wakes a thread that waits for them.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::context::{Context, same, set_nonblocking};
use crate::error::{Error, code, errno};
use crate::status::{Failure, Status};
use crate::sys;

/// Kind of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A send, with or without immediate.
    Send,
    /// An RDMA write, with or without immediate.
    Write,
    /// An RDMA read.
    Read,
    /// A receive that a send consumed.
    Receive,
    /// A receive that a write with immediate consumed.
    ReceiveWrite,
    /// Another kind, by libibverbs' number.
    Other(u32),
}

/// An entry of a completion queue.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Completion(sys::ibv_wc);

impl Completion {
    /// Returns the id that the request was given.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns the number of the queue pair.
    #[must_use]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// Returns whether the request succeeded. If it failed, only [`Completion::id`] and [`Completion::queue_pair`]
    /// are valid.
    ///
    /// # Errors
    /// The way in which it failed.
    pub fn result(&self) -> Result<(), Failure> {
        match Status::from_raw(self.0.status) {
            Status::Success => Ok(()),
            status => Err(Failure { status, vendor_code: self.0.vendor_err }),
        }
    }

    /// Returns the kind of the completed operation.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.0.opcode {
            sys::IBV_WC_SEND => Kind::Send,
            sys::IBV_WC_RDMA_WRITE => Kind::Write,
            sys::IBV_WC_RDMA_READ => Kind::Read,
            sys::IBV_WC_RECV => Kind::Receive,
            sys::IBV_WC_RECV_RDMA_WITH_IMM => Kind::ReceiveWrite,
            other => Kind::Other(other),
        }
    }

    /// Returns the number of bytes received or read; valid for receives and reads.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// Returns the 32 bits that came with it, if there are any.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        (self.0.wc_flags & sys::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(self.0.imm_data))
    }
}

/// Queue of the completions of one or more queue pairs. Cheap to clone.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Queue>);

struct Queue {
    context: Context,
    queue: NonNull<sys::ibv_cq>,
    poll: sys::PollCq,
    request: sys::ReqNotifyCq,
    depth: u32,
    // The channel is destroyed after the queue.
    _channel: Option<CompletionChannel>,
}

// SAFETY: the verbs permit polling and arming one queue from several threads; providers lock.
unsafe impl Send for Queue {}
// SAFETY: as for `Send`.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue was made once and is destroyed once; queue pairs hold an `Arc` of this and are gone. The
        // call waits for unacknowledged events, of which there are none: `CompletionChannel::take_event` acknowledges
        // at once.
        unsafe { (self.context.symbols().ibv_destroy_cq)(self.queue.as_ptr()) };
    }
}

/// Selection of the completions that wake a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// All completions.
    Any,
    /// Failures, and receives of messages sent as solicited.
    Solicited,
}

impl CompletionQueue {
    pub(crate) fn new(
        context: Context,
        depth: u32,
        channel: Option<CompletionChannel>,
        cookie: usize,
    ) -> Result<Self, Error> {
        if let Some(channel) = &channel
            && !same(&channel.0.context, &context)
        {
            return Err(Error::Usage { detail: "the completion channel is of another device".into() });
        }
        let entries = c_int::try_from(depth)
            .ok()
            .filter(|&entries| entries > 0)
            .ok_or_else(|| Error::Usage { detail: format!("a completion queue of {depth} entries") })?;
        let ops = &context.raw().ops;
        let (Some(poll), Some(request)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(Error::Unsupported { what: "poll_cq or req_notify_cq of this device's provider" });
        };
        let channel_ptr = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.0.channel.as_ptr());
        let cookie = ptr::without_provenance_mut::<c_void>(cookie);
        // SAFETY: the context is live, and the channel is one of it or null; the library only returns the cookie.
        // Vector 0 exists.
        let queue =
            unsafe { (context.symbols().ibv_create_cq)(context.as_ptr(), entries, cookie, channel_ptr, 0) };
        let queue = NonNull::new(queue).ok_or_else(|| {
            Error::call("ibv_create_cq", format!("making a completion queue of {depth} entries"), errno())
        })?;
        // SAFETY: the queue was just made; the depth changes only by resizing, which is not done.
        let depth = u32::try_from(unsafe { queue.as_ref().cqe }).unwrap_or(depth);
        Ok(Self(Arc::new(Queue { context, queue, poll, request, depth, _channel: channel })))
    }

    /// Returns the number of entries that it holds. An overrun destroys it: post no more requests than fit.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.0.depth
    }

    /// Takes the completions that are there, up to the slice's length, and returns how many. Does not block.
    ///
    /// # Errors
    /// If the device is gone.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, Error> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is live; the call writes at most `room` entries, over which `Completion` is transparent.
        let taken = unsafe { (self.0.poll)(self.0.queue.as_ptr(), room, into.as_mut_ptr().cast()) };
        usize::try_from(taken).map_err(|_| Error::call("ibv_poll_cq", "polling for completions", libc::EIO))
    }

    /// Requests one event of the channel at the next completion. Poll once more before sleeping: completions that are
    /// already there cause no event.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn request_event(&self, wake: Wake) -> Result<(), Error> {
        let solicited = c_int::from(wake == Wake::Solicited);
        // SAFETY: the queue is live.
        code(unsafe { (self.0.request)(self.0.queue.as_ptr(), solicited) })
            .map_err(|errno| Error::call("ibv_req_notify_cq", "asking for an event", errno))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.0.queue.as_ptr()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("depth", &self.0.depth).finish_non_exhaustive()
    }
}

/// A descriptor that becomes readable when a queue that requested it gets a completion. Cheap to clone.
#[derive(Clone)]
pub struct CompletionChannel(Arc<Channel>);

struct Channel {
    context: Context,
    channel: NonNull<sys::ibv_comp_channel>,
}

// SAFETY: the verbs are thread-safe; `fd` does not change.
unsafe impl Send for Channel {}
// SAFETY: as for `Send`.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the channel was made once and is destroyed once; its queues hold an `Arc` of this and are gone.
        unsafe { (self.context.symbols().ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

impl CompletionChannel {
    pub(crate) fn new(context: Context) -> Result<Self, Error> {
        // SAFETY: the context is live; the result is checked.
        let channel = unsafe { (context.symbols().ibv_create_comp_channel)(context.as_ptr()) };
        let channel = NonNull::new(channel)
            .ok_or_else(|| Error::call("ibv_create_comp_channel", "making a completion channel", errno()))?;
        let made = Self(Arc::new(Channel { context, channel }));
        set_nonblocking(made.fd())?;
        Ok(made)
    }

    /// Takes the next event and returns the cookie of its queue; `None` if there is no event. Does not block.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn take_event(&self) -> Result<Option<usize>, Error> {
        let symbols = self.0.context.symbols();
        let (mut queue, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is live and its descriptor non-blocking; the call writes two pointers.
        let returned =
            unsafe { (symbols.ibv_get_cq_event)(self.0.channel.as_ptr(), &raw mut queue, &raw mut cookie) };
        match code(returned) {
            Ok(()) => {
                // SAFETY: the queue of an event is not destroyed before the event is acknowledged.
                unsafe { (symbols.ibv_ack_cq_events)(queue, 1) };
                Ok(Some(cookie.addr()))
            }
            Err(libc::EAGAIN | libc::EINTR) => Ok(None),
            Err(errno) => Err(Error::call("ibv_get_cq_event", "reading a completion event", errno)),
        }
    }

    fn fd(&self) -> c_int {
        // SAFETY: the structure lives as long as `self`, and is written only when it is made.
        unsafe { self.0.channel.as_ref().fd }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("fd", &self.fd()).finish_non_exhaustive()
    }
}
