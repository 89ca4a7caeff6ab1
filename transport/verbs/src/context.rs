//! An opened device.

use std::ffi::c_int;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::completion::{CompletionChannel, CompletionQueue};
use crate::error::{Error, code, errno};
use crate::gid::{self, GidEntry};
use crate::library::{Device, ForkSafety, text};
use crate::memory::ProtectionDomain;
use crate::port::{LinkLayer, Port};
use crate::sys::{self, Symbols};

/// An opened device. Cheap to clone; closed with the last thing that was made of it.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    device: Device,
    context: NonNull<sys::ibv_context>,
}

// SAFETY: libibverbs' functions may be called on one context from several threads at once (ibv_open_device(3) and
// the thread-safety rule of the verbs); the fields read here do not change after opening.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; everything made of it holds an `Arc` of this and is gone. An error has
        // no consequence for us and no remedy.
        unsafe { (self.device.library().symbols().ibv_close_device)(self.context.as_ptr()) };
    }
}

/// A device's capabilities; limits of one process' or one queue's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Version of its firmware, as text.
    pub firmware: String,
    /// Vendor, as IEEE number.
    pub vendor: u32,
    /// The vendor's number of the part.
    pub part: u32,
    /// Number of ports.
    pub ports: u8,
    /// Queue pairs.
    pub queue_pairs_max: u32,
    /// Work requests a queue.
    pub queue_depth_max: u32,
    /// Pieces a work request.
    pub pieces_max: u32,
    /// Completion queues.
    pub completion_queues_max: u32,
    /// Entries a completion queue.
    pub completion_depth_max: u32,
    /// Memory regions.
    pub regions_max: u32,
    /// Bytes of a memory region.
    pub region_bytes_max: u64,
    /// RDMA reads a queue pair may have under way as the target.
    pub read_depth_max: u8,
    /// RDMA reads a queue pair may have under way as the initiator.
    pub read_depth_initiator_max: u8,
}

/// Event of a device, not a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The device is gone or unusable.
    DeviceFatal,
    /// A port went down. Transfers time out only much later.
    PortDown {
        /// Its number.
        port: u8,
    },
    /// A port is usable again.
    PortUp {
        /// Its number.
        port: u8,
    },
    /// A queue pair is out of service, and no request of its own need say so.
    QueuePairFailed {
        /// Its number.
        number: u32,
        /// How.
        fault: QueuePairFault,
    },
    /// A completion queue is out of service, and with it all queue pairs that use it.
    CompletionQueueFailed {
        /// The cookie that the queue was made with.
        cookie: usize,
    },
    /// Another event, by libibverbs' number.
    Other(u32),
}

/// Why a queue pair is out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairFault {
    /// `IBV_EVENT_QP_FATAL`: the device gave it up.
    Device,
    /// `IBV_EVENT_QP_REQ_ERR`: the peer sent a request that is none.
    Request,
    /// `IBV_EVENT_QP_ACCESS_ERR`: the peer asked for memory that it may not touch.
    Access,
}

impl Context {
    pub(crate) fn open(device: Device) -> Result<Self, Error> {
        // SAFETY: a device of a live list; the result is checked.
        let context = unsafe { (device.library().symbols().ibv_open_device)(device.as_ptr()) };
        match NonNull::new(context) {
            None => Err(Error::call("ibv_open_device", format!("opening {}", device.name()), errno())),
            Some(context) => {
                let opened = Self(Arc::new(Inner { device, context }));
                set_nonblocking(opened.raw().async_fd)?;
                Ok(opened)
            }
        }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Effect of `fork` on memory that is registered with it.
    #[must_use]
    pub fn fork_safety(&self) -> ForkSafety {
        self.device().library().fork_safety()
    }

    /// Its capabilities.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn attributes(&self) -> Result<DeviceAttributes, Error> {
        let mut raw = sys::ibv_device_attr::zeroed();
        // SAFETY: a live context; writes one structure, whose size has not changed since 2006.
        code(unsafe { (self.symbols().ibv_query_device)(self.as_ptr(), &raw mut raw) }).map_err(|errno| {
            Error::call("ibv_query_device", format!("asking {}", self.device().name()), errno)
        })?;
        let count = |value: c_int| u32::try_from(value).unwrap_or(0);
        let small = |value: c_int| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        Ok(DeviceAttributes {
            firmware: text(&raw.fw_ver),
            vendor: raw.vendor_id,
            part: raw.vendor_part_id,
            ports: raw.phys_port_cnt,
            queue_pairs_max: count(raw.max_qp),
            queue_depth_max: count(raw.max_qp_wr),
            pieces_max: count(raw.max_sge),
            completion_queues_max: count(raw.max_cq),
            completion_depth_max: count(raw.max_cqe),
            regions_max: count(raw.max_mr),
            region_bytes_max: raw.max_mr_size,
            read_depth_max: small(raw.max_qp_rd_atom),
            read_depth_initiator_max: small(raw.max_qp_init_rd_atom),
        })
    }

    /// A port; they count from 1.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let mut raw = sys::ibv_port_attr::zeroed();
        // SAFETY: a live context; writes one structure of at most the size of the mirror with its slack. (The
        // exported function writes the old, shorter form.)
        code(unsafe { (self.symbols().ibv_query_port)(self.as_ptr(), number, &raw mut raw) }).map_err(
            |errno| {
                Error::call(
                    "ibv_query_port",
                    format!("asking {} for port {number}", self.device().name()),
                    errno,
                )
            },
        )?;
        Ok(Port::decode(number, &raw, &self.device().sysfs()))
    }

    /// The addresses of a port.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn gids(&self, port: &Port) -> Result<Vec<GidEntry>, Error> {
        gid::table(self, port.number, port.gid_table_len, port.link_layer == LinkLayer::Ethernet)
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// If the device has no more.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(self.clone())
    }

    /// A new completion channel: a descriptor that becomes readable when a queue asks for it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::new(self.clone())
    }

    /// A new completion queue for at least `depth` entries; `cookie` comes back from the channel's events.
    ///
    /// # Errors
    /// If `depth` is beyond the device, or the device has no more.
    pub fn completion_queue(
        &self,
        depth: u32,
        channel: Option<&CompletionChannel>,
        cookie: usize,
    ) -> Result<CompletionQueue, Error> {
        CompletionQueue::new(self.clone(), depth, channel.cloned(), cookie)
    }

    /// Readable when [`Context::async_event`] has something.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.raw().async_fd) }
    }

    /// The next event of the device, if any. Does not block. Should be read now and then even by those who do not
    /// care, since the kernel keeps them.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn async_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut raw = sys::ibv_async_event::zeroed();
        // SAFETY: a live context with a non-blocking descriptor; writes one event.
        let returned = unsafe { (self.symbols().ibv_get_async_event)(self.as_ptr(), &raw mut raw) };
        match code(returned) {
            Err(libc::EAGAIN | libc::EINTR) => return Ok(None),
            Err(errno) => return Err(Error::call("ibv_get_async_event", "reading a device's event", errno)),
            Ok(()) => {}
        }
        // SAFETY: as just received, and not acknowledged yet: what it names is not destroyed before that.
        let event = unsafe { decode(&raw) };
        // SAFETY: as just received. The named object is acknowledged before anybody could wait for that: an object is destroyed only
        // after its events are acknowledged.
        unsafe { (self.symbols().ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(event))
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        self.0.device.library().symbols()
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.0.context.as_ptr()
    }

    pub(crate) fn raw(&self) -> &sys::ibv_context {
        // SAFETY: lives as long as `self`. The library writes only to `mutex` after opening, which is not read.
        unsafe { self.0.context.as_ref() }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.device().name())
    }
}

/// # Safety
/// The event was received and is not acknowledged, so that the object it names is alive.
unsafe fn decode(raw: &sys::ibv_async_event) -> AsyncEvent {
    let object = raw.element as usize;
    let pair = |fault| {
        let pair = std::ptr::with_exposed_provenance::<sys::ibv_qp>(object);
        // SAFETY: an event of a queue pair names it by its address; alive, by the caller's promise.
        AsyncEvent::QueuePairFailed { number: unsafe { (*pair).qp_num }, fault }
    };
    match raw.event_type {
        sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown { port: port_of(raw) },
        sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortUp { port: port_of(raw) },
        sys::IBV_EVENT_QP_FATAL => pair(QueuePairFault::Device),
        sys::IBV_EVENT_QP_REQ_ERR => pair(QueuePairFault::Request),
        sys::IBV_EVENT_QP_ACCESS_ERR => pair(QueuePairFault::Access),
        sys::IBV_EVENT_CQ_ERR => {
            let queue = std::ptr::with_exposed_provenance::<sys::ibv_cq>(object);
            // SAFETY: as for a queue pair.
            AsyncEvent::CompletionQueueFailed { cookie: unsafe { (*queue).cq_context }.addr() }
        }
        other => AsyncEvent::Other(other),
    }
}

/// The port number in the union of an event: an int at its start.
fn port_of(event: &sys::ibv_async_event) -> u8 {
    let first = event.element.to_ne_bytes();
    u8::try_from(u32::from_ne_bytes([first[0], first[1], first[2], first[3]])).unwrap_or(0)
}

pub(crate) fn set_nonblocking(fd: c_int) -> Result<(), Error> {
    // SAFETY: only changes flags of an open descriptor.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(Error::call("fcntl", "making an event descriptor non-blocking", errno())) }
}

/// For messages: whether two handles belong to one opened device.
pub(crate) fn same(one: &Context, other: &Context) -> bool {
    Arc::ptr_eq(&one.0, &other.0)
}
