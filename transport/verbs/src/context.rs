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

/// An opened device. Cheap to clone; closed with the last object that was made from it.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    device: Device,
    context: NonNull<sys::ibv_context>,
}

// SAFETY: libibverbs' functions may be called on one context from several threads at once (ibv_open_device(3) and
// the thread-safety rule of the verbs); the fields read here do not change after opening.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the device was opened once and is closed once; all objects made from it hold an `Arc` of this and
        // are gone. An error has no consequence here and no remedy.
        unsafe { (self.device.library().symbols().ibv_close_device)(self.context.as_ptr()) };
    }
}

/// Capabilities of a device. Limits are per process or per queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Version of its firmware, as text.
    pub firmware: String,
    /// The vendor's IEEE number.
    pub vendor: u32,
    /// The vendor's part number.
    pub part: u32,
    /// Number of ports.
    pub ports: u8,
    /// Maximum number of queue pairs.
    pub queue_pairs_max: u32,
    /// Maximum number of work requests per queue.
    pub queue_depth_max: u32,
    /// Maximum number of pieces per work request.
    pub pieces_max: u32,
    /// Maximum number of completion queues.
    pub completion_queues_max: u32,
    /// Maximum number of entries per completion queue.
    pub completion_depth_max: u32,
    /// Maximum number of memory regions.
    pub regions_max: u32,
    /// Maximum length of a memory region in bytes.
    pub region_bytes_max: u64,
    /// Maximum number of RDMA reads that a queue pair may have in progress as the target.
    pub read_depth_max: u8,
    /// Maximum number of RDMA reads that a queue pair may have in progress as the initiator.
    pub read_depth_initiator_max: u8,
}

/// Event of a device that is not a completion.
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
    /// A queue pair is out of service; its requests need not report that.
    QueuePairFailed {
        /// Its number.
        number: u32,
        /// The reason.
        fault: QueuePairFault,
    },
    /// A completion queue is out of service, and with it all queue pairs that use it.
    CompletionQueueFailed {
        /// The cookie with which the queue was made.
        cookie: usize,
    },
    /// Another event, by libibverbs' number.
    Other(u32),
}

/// Reason why a queue pair is out of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairFault {
    /// `IBV_EVENT_QP_FATAL`: the device gave it up.
    Device,
    /// `IBV_EVENT_QP_REQ_ERR`: the peer sent an invalid request.
    Request,
    /// `IBV_EVENT_QP_ACCESS_ERR`: the peer requested access to memory that it may not touch.
    Access,
}

impl Context {
    pub(crate) fn open(device: Device) -> Result<Self, Error> {
        // SAFETY: the device is in a live list; the result is checked.
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

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the effect of `fork` on memory that is registered with the device.
    #[must_use]
    pub fn fork_safety(&self) -> ForkSafety {
        self.device().library().fork_safety()
    }

    /// Returns the device's capabilities.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn attributes(&self) -> Result<DeviceAttributes, Error> {
        let mut raw = sys::ibv_device_attr::zeroed();
        // SAFETY: the context is live; the call writes one structure, whose size has not changed since 2006.
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

    /// Returns the properties of a port; ports count from 1.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let mut raw = sys::ibv_port_attr::zeroed();
        // SAFETY: the context is live; the call writes one structure of at most the size of the mirror with its
        // slack. (The exported function writes the old, shorter form.)
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

    /// Returns the addresses of a port.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn gids(&self, port: &Port) -> Result<Vec<GidEntry>, Error> {
        gid::table(self, port.number, port.gid_table_len, port.link_layer == LinkLayer::Ethernet)
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// If the device has none left.
    pub fn protection_domain(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::new(self.clone())
    }

    /// Makes a completion channel: a descriptor that becomes readable when a queue that requested it has a
    /// completion.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn completion_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::new(self.clone())
    }

    /// Makes a completion queue for at least `depth` entries. The channel's events carry `cookie`.
    ///
    /// # Errors
    /// If `depth` exceeds the device's limit, or the device has no queue left.
    pub fn completion_queue(
        &self,
        depth: u32,
        channel: Option<&CompletionChannel>,
        cookie: usize,
    ) -> Result<CompletionQueue, Error> {
        CompletionQueue::new(self.clone(), depth, channel.cloned(), cookie)
    }

    /// Returns a descriptor that is readable when [`Context::async_event`] has an event.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.raw().async_fd) }
    }

    /// Returns the next event of the device, if there is one. Does not block. Owners that do not need the events
    /// should still read them now and then, since the kernel keeps them.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn async_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let mut raw = sys::ibv_async_event::zeroed();
        // SAFETY: the context is live and its descriptor non-blocking; the call writes one event.
        let returned = unsafe { (self.symbols().ibv_get_async_event)(self.as_ptr(), &raw mut raw) };
        match code(returned) {
            Err(libc::EAGAIN | libc::EINTR) => return Ok(None),
            Err(errno) => return Err(Error::call("ibv_get_async_event", "reading a device's event", errno)),
            Ok(()) => {}
        }
        // SAFETY: the event was just received and is not acknowledged: the object that it names is not destroyed
        // before that.
        let event = unsafe { decode(&raw) };
        // SAFETY: the event was just received. The object that it names cannot be gone, because an object is
        // destroyed only after its events are acknowledged.
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
        // SAFETY: the structure lives as long as `self`. After opening, the library writes only to `mutex`, which is
        // not read.
        unsafe { self.0.context.as_ref() }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.device().name())
    }
}

/// # Safety
/// The event was received and is not acknowledged, so the object that it names is alive.
unsafe fn decode(raw: &sys::ibv_async_event) -> AsyncEvent {
    let object = raw.element as usize;
    let pair = |fault| {
        let pair = std::ptr::with_exposed_provenance::<sys::ibv_qp>(object);
        // SAFETY: an event of a queue pair names it by its address; by the caller's promise the pair is alive.
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

/// Returns the port number in the union of an event, which is an int at its start.
fn port_of(event: &sys::ibv_async_event) -> u8 {
    let first = event.element.to_ne_bytes();
    u8::try_from(u32::from_ne_bytes([first[0], first[1], first[2], first[3]])).unwrap_or(0)
}

pub(crate) fn set_nonblocking(fd: c_int) -> Result<(), Error> {
    // SAFETY: the call only changes flags of an open descriptor.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(Error::call("fcntl", "making an event descriptor non-blocking", errno())) }
}

/// Returns whether two handles belong to the same opened device.
pub(crate) fn same(one: &Context, other: &Context) -> bool {
    Arc::ptr_eq(&one.0, &other.0)
}
