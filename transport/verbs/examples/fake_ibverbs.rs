//! A stand-in for libibverbs over this process' own memory, loaded by tests in its place.
//!
//! Devices "fake0", "fake1" ... whose reliable connected queue pairs reach each other within one process. Requests
//! are carried out when posted; a send that meets no receive waits for it. Tests turn its knobs with `fake_set` and
//! ask with `fake_live` how many objects were not given back. Misuse that would hang or corrupt with the real one
//! ends the process.

#![allow(missing_docs, clippy::missing_safety_doc)]

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard};

use kolo_verbs::sys::*;

/// See `tests/common/fake.rs`, which has the same list.
#[derive(Default)]
struct Knobs {
    values: HashMap<u32, i64>,
}
const DEVICES: u32 = 0;
const LIST_ERRNO: u32 = 1;
const CREATE_QP_ERRNO: u32 = 2;
const NEXT_STATUS: u32 = 3;
const REGISTER_ERRNO: u32 = 4;
const PORT_STATE: u32 = 5;
const TRANSPORT: u32 = 6;
const RTR_ERRNO: u32 = 7;
const GIDS: u32 = 8;
const ASYNC_EVENT: u32 = 9;
const OPEN_ERRNO: u32 = 10;

impl Knobs {
    fn of(&self, knob: u32, default: i64) -> i64 {
        *self.values.get(&knob).unwrap_or(&default)
    }
}

struct Region {
    start: u64,
    len: u64,
    access: u32,
}

struct Sending {
    id: u64,
    opcode: u32,
    flags: u32,
    immediate: u32,
    remote: u64,
    key: u32,
    pieces: Vec<ibv_sge>,
    inline: Option<Vec<u8>>,
}

struct Pair {
    state: u32,
    access: u32,
    peer: u32,
    endless_retry: bool,
    cap: ibv_qp_cap,
    send_queue: usize,
    receive_queue: usize,
    receives: VecDeque<(u64, Vec<ibv_sge>)>,
    sends: VecDeque<Sending>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<ibv_wc>,
    armed: bool,
    event_fd: Option<c_int>,
    unacknowledged: u32,
}

#[derive(Default)]
struct World {
    knobs: Knobs,
    pairs: HashMap<u32, Pair>,
    queues: HashMap<usize, Queue>,
    regions: HashMap<u32, Region>,
    /// Write ends of the pipes behind descriptors that the user reads, by that descriptor.
    pipes: HashMap<c_int, c_int>,
    async_fds: Vec<c_int>,
    next: u32,
    live: i64,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);

fn world() -> MutexGuard<'static, World> {
    WORLD.lock().expect("nobody panics while holding it")
}

fn fail(errno: c_int) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

fn leak<T>(value: T) -> *mut T {
    world().live += 1;
    Box::into_raw(Box::new(value))
}

unsafe fn free<T>(pointer: *mut T) -> c_int {
    world().live -= 1;
    // SAFETY: from `leak`, once.
    drop(unsafe { Box::from_raw(pointer) });
    0
}

impl World {
    fn number(&mut self) -> u32 {
        self.next += 1;
        0x100 + self.next
    }

    fn pipe(&mut self) -> c_int {
        let mut ends = [0; 2];
        // SAFETY: writes two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        self.pipes.insert(ends[0], ends[1]);
        ends[0]
    }

    fn close(&mut self, fd: c_int) {
        let other = self.pipes.remove(&fd).expect("a descriptor of ours");
        // SAFETY: both are ours and closed once.
        unsafe { (libc::close(fd), libc::close(other)) };
    }

    fn tell(&self, fd: c_int, bytes: &[u8]) {
        // SAFETY: an open pipe; a few bytes are written whole.
        let written = unsafe { libc::write(self.pipes[&fd], bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(written, bytes.len() as isize);
    }

    fn complete(&mut self, queue: usize, entry: ibv_wc) {
        let found = self.queues.get_mut(&queue).expect("a live queue");
        found.entries.push_back(entry);
        if let (true, Some(fd)) = (found.armed, found.event_fd) {
            found.armed = false;
            self.tell(fd, &queue.to_ne_bytes());
        }
    }

    /// All bytes of these pieces, if their keys allow it.
    fn gather(&self, pieces: &[ibv_sge]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let source = self.within(piece.lkey, piece.addr, u64::from(piece.length), 0)?;
            // SAFETY: within a registered region, which its owner keeps mapped.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(source, piece.length as usize) });
        }
        Some(bytes)
    }

    fn scatter(&self, pieces: &[ibv_sge], mut bytes: &[u8]) -> Option<()> {
        for piece in pieces {
            let (now, later) = bytes.split_at(bytes.len().min(piece.length as usize));
            let target =
                self.within(piece.lkey, piece.addr, u64::from(piece.length), IBV_ACCESS_LOCAL_WRITE)?;
            // SAFETY: as above; `bytes` is our own copy.
            unsafe { target.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            bytes = later;
        }
        Some(())
    }

    fn within(&self, key: u32, start: u64, len: u64, access: u32) -> Option<*mut u8> {
        let region = self.regions.get(&key)?;
        let end = start.checked_add(len)?;
        (start >= region.start && end <= region.start + region.len && region.access & access == access)
            .then_some(start as *mut u8)
    }

    /// Carries out what is posted, until a send has to wait.
    fn progress(&mut self, number: u32) {
        loop {
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            if pair.state == IBV_QPS_ERR {
                return self.flush(number);
            }
            let (peer, endless, queue) = (pair.peer, pair.endless_retry, pair.send_queue);
            let Some(send) = pair.sends.pop_front() else { return };
            let injected = self.knobs.values.remove(&NEXT_STATUS).map(|status| status as u32);
            let status = match injected.map_or_else(|| self.carry_out(peer, &send), Err) {
                Ok(()) => 0,
                Err(13) if endless && injected.is_none() => {
                    self.pairs.get_mut(&number).expect("above").sends.push_front(send);
                    return;
                }
                Err(status) => status,
            };
            if status != 0 || send.flags & IBV_SEND_SIGNALED != 0 {
                let opcode = match send.opcode {
                    IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => IBV_WC_SEND,
                    IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
                    _ => IBV_WC_RDMA_WRITE,
                };
                let byte_len = send.pieces.iter().map(|piece| piece.length).sum();
                let vendor_err = if status == 0 { 0 } else { 0xfa };
                let entry = ibv_wc {
                    wr_id: send.id,
                    status,
                    opcode,
                    byte_len,
                    qp_num: number,
                    vendor_err,
                    ..Default::default()
                };
                self.complete(queue, entry);
            }
            if status != 0 {
                self.pairs.get_mut(&number).expect("above").state = IBV_QPS_ERR;
            }
        }
    }

    fn flush(&mut self, number: u32) {
        let pair = self.pairs.get_mut(&number).expect("a live pair");
        let (send_queue, receive_queue) = (pair.send_queue, pair.receive_queue);
        let sends: Vec<u64> = pair.sends.drain(..).map(|send| send.id).collect();
        let receives: Vec<u64> = pair.receives.drain(..).map(|(id, _)| id).collect();
        let ids = sends.into_iter().map(|id| (send_queue, id));
        for (queue, wr_id) in ids.chain(receives.into_iter().map(|id| (receive_queue, id))) {
            self.complete(queue, ibv_wc { wr_id, status: 5, qp_num: number, ..Default::default() });
        }
    }

    /// One request towards the pair `peer`; what fails there is reported there too.
    fn carry_out(&mut self, peer: u32, send: &Sending) -> Result<(), u32> {
        let target = self.pairs.get(&peer).ok_or(12u32)?;
        if target.state != IBV_QPS_RTR && target.state != IBV_QPS_RTS {
            return Err(12);
        }
        let len: u64 = send.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let (needs, is_write) = match send.opcode {
            IBV_WR_RDMA_READ => (IBV_ACCESS_REMOTE_READ, false),
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => (IBV_ACCESS_REMOTE_WRITE, true),
            _ => (0, false),
        };
        let place = if needs == 0 || len == 0 {
            ptr::null_mut()
        } else {
            let allowed = target.access & needs == needs;
            let place = self.within(send.key, send.remote, len, needs).filter(|_| allowed);
            let Some(place) = place else {
                self.pairs.get_mut(&peer).expect("above").state = IBV_QPS_ERR;
                self.flush(peer);
                return Err(10);
            };
            place
        };
        if send.opcode == IBV_WR_RDMA_READ {
            // SAFETY: within a region of the peer, kept mapped by its owner.
            let bytes = unsafe { std::slice::from_raw_parts(place, len as usize) }.to_vec();
            return self.scatter(&send.pieces, &bytes).ok_or(4);
        }
        let takes_receive = send.opcode != IBV_WR_RDMA_WRITE;
        if takes_receive && self.pairs[&peer].receives.is_empty() {
            return Err(13);
        }
        let bytes = match &send.inline {
            Some(bytes) => bytes.clone(),
            None => self.gather(&send.pieces).ok_or(4u32)?,
        };
        if is_write && len > 0 {
            // SAFETY: as above, for writing; `bytes` is our own copy.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        if takes_receive {
            self.receive(peer, send, &bytes, is_write)?;
        }
        Ok(())
    }

    fn receive(&mut self, peer: u32, send: &Sending, bytes: &[u8], is_write: bool) -> Result<(), u32> {
        let target = self.pairs.get_mut(&peer).expect("checked by the caller");
        let (id, pieces) = target.receives.pop_front().expect("checked by the caller");
        let queue = target.receive_queue;
        let room: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        let (status, answer) = if is_write {
            (0, Ok(()))
        } else if room < bytes.len() as u64 {
            (1, Err(9))
        } else if self.scatter(&pieces, bytes).is_none() {
            (4, Err(11))
        } else {
            (0, Ok(()))
        };
        let with_immediate = matches!(send.opcode, IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM);
        let entry = ibv_wc {
            wr_id: id,
            status,
            opcode: if is_write { IBV_WC_RECV_RDMA_WITH_IMM } else { IBV_WC_RECV },
            byte_len: bytes.len() as u32,
            imm_data: send.immediate,
            qp_num: peer,
            wc_flags: if with_immediate { IBV_WC_WITH_IMM } else { 0 },
            ..Default::default()
        };
        self.complete(queue, entry);
        if status != 0 {
            self.pairs.get_mut(&peer).expect("above").state = IBV_QPS_ERR;
            self.flush(peer);
        }
        answer
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_set(knob: u32, value: i64) {
    let mut world = world();
    if knob == ASYNC_EVENT {
        for &fd in &world.async_fds {
            world.tell(fd, &(value as u32).to_ne_bytes());
        }
        return;
    }
    world.knobs.values.insert(knob, value);
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_live() -> i64 {
    world().live
}

fn name_of<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    chars
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let (devices, errno, transport) = {
        let knobs = &world().knobs;
        (knobs.of(DEVICES, 1), knobs.of(LIST_ERRNO, 0), knobs.of(TRANSPORT, 0))
    };
    if errno != 0 {
        fail(errno as c_int);
        return ptr::null_mut();
    }
    let mut list: Vec<*mut ibv_device> = (0..devices)
        .map(|index| {
            let mut device = ibv_device::zeroed();
            device.node_type = 1;
            device.transport_type = transport as u32;
            device.name = name_of(&format!("fake{index}"));
            device.ibdev_path = name_of(&format!("/sys/class/infiniband/no-such-fake{index}"));
            // Kept: contexts may outlive the list, and there are few.
            Box::into_raw(Box::new(device))
        })
        .collect();
    list.push(ptr::null_mut());
    // SAFETY: the caller's int.
    unsafe { *count = devices as c_int };
    let list = leak(list);
    // SAFETY: just made. The head of the vector is what the user sees; `LISTS` finds the vector again.
    let head = unsafe { (*list).as_mut_ptr() };
    LISTS.lock().expect("as above").insert(head as usize, list as usize);
    head
}

static LISTS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let vector = LISTS.lock().expect("as above").remove(&(list as usize)).expect("a live list");
    // SAFETY: made above, freed once.
    unsafe { free(vector as *mut Vec<*mut ibv_device>) };
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(_: *mut ibv_device) -> u64 {
    0x0123_4567_89ab_cdef_u64.to_be()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let errno = world().knobs.of(OPEN_ERRNO, 0);
    if errno != 0 {
        fail(errno as c_int);
        return ptr::null_mut();
    }
    let mut ops = ibv_context_ops::zeroed();
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    let async_fd = {
        let mut world = world();
        let fd = world.pipe();
        world.async_fds.push(fd);
        fd
    };
    leak(ibv_context {
        device,
        ops,
        cmd_fd: -1,
        async_fd,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: ptr::null_mut(),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: live until freed below.
    let fd = unsafe { (*context).async_fd };
    let mut world = world();
    world.async_fds.retain(|&other| other != fd);
    world.close(fd);
    drop(world);
    // SAFETY: opened above, closed once.
    unsafe { free(context) }
}

fn read_from(fd: c_int, bytes: &mut [u8]) -> bool {
    // SAFETY: an open pipe and a buffer; errno is the caller's business.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) == bytes.len() as isize }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let mut bytes = [0; 4];
    // SAFETY: a live context and the caller's event.
    unsafe {
        if !read_from((*context).async_fd, &mut bytes) {
            return -1;
        }
        *event = ibv_async_event { element: 1, event_type: u32::from_ne_bytes(bytes) };
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(_: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    let mut attributes = ibv_device_attr::zeroed();
    attributes.fw_ver = name_of("1.2.3");
    attributes.max_qp = 64;
    attributes.max_qp_wr = 1024;
    attributes.max_sge = 4;
    attributes.max_cq = 64;
    attributes.max_cqe = 4096;
    attributes.max_mr = 64;
    attributes.max_mr_size = u64::MAX;
    attributes.max_qp_rd_atom = 16;
    attributes.max_qp_init_rd_atom = 16;
    attributes.phys_port_cnt = 1;
    // SAFETY: the caller's structure.
    unsafe { *out = attributes };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(_: *mut ibv_context, port: u8, out: *mut ibv_port_attr) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    let world = world();
    let mut attributes = ibv_port_attr::zeroed();
    attributes.state = world.knobs.of(PORT_STATE, IBV_PORT_ACTIVE.into()) as u32;
    attributes.max_mtu = 5;
    attributes.active_mtu = 3;
    attributes.gid_tbl_len = 8;
    attributes.max_msg_sz = 1 << 30;
    attributes.active_width = 2;
    attributes.active_speed = 32;
    attributes.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    // SAFETY: the caller's structure.
    unsafe { *out = attributes };
    0
}

fn gid(index: i64) -> Option<[u8; 16]> {
    match index {
        index if index >= world().knobs.of(GIDS, 2) => None,
        0 => Some([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        _ => Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(_: *mut ibv_context, _: u8, index: c_int, out: *mut ibv_gid) -> c_int {
    // SAFETY: the caller's structure. An empty entry is all zero.
    unsafe { (*out).raw = gid(index.into()).unwrap_or_default() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    _: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    assert_eq!((flags, size), (0, size_of::<ibv_gid_entry>()));
    let Some(raw) = gid(index.into()) else { return libc::ENODATA };
    let gid = ibv_gid { raw };
    // SAFETY: the caller's structure, of the size just checked. Interface 1 is the loopback.
    unsafe { *out = ibv_gid_entry { gid, gid_index: index, port_num: port, gid_type: 2, ndev_ifindex: 1 } };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    leak(ibv_pd { context, handle: 0 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: allocated above, once.
    unsafe { free(domain) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { register(domain, addr, length, access as u32) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: as the caller promises.
    unsafe { register(domain, addr, length, access) }
}

unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: u32) -> *mut ibv_mr {
    let key = {
        let mut world = world();
        let errno = world.knobs.of(REGISTER_ERRNO, 0);
        if errno != 0 {
            fail(errno as c_int);
            return ptr::null_mut();
        }
        let key = world.number();
        world.regions.insert(key, Region { start: addr as u64, len: length as u64, access });
        key
    };
    // SAFETY: a live domain.
    let context = unsafe { (*pd).context };
    leak(ibv_mr { context, pd, addr, length, handle: 0, lkey: key, rkey: key })
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    fd: c_int,
    _: c_int,
) -> *mut ibv_mr {
    fail(if fd < 0 { libc::EBADF } else { libc::EINVAL });
    ptr::null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    // SAFETY: registered above, live until freed here.
    unsafe {
        world().regions.remove(&(*region).lkey).expect("a live region");
        free(region)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = world().pipe();
    leak(ibv_comp_channel { context, fd, refcnt: 0 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: made above, live until freed here.
    unsafe {
        world().close((*channel).fd);
        free(channel)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    if cqe > 4096 {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    let queue = leak(ibv_cq {
        context,
        channel,
        cq_context,
        handle: 0,
        cqe,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    });
    // SAFETY: a live channel, or null.
    let event_fd = unsafe { channel.as_ref() }.map(|channel| channel.fd);
    world().queues.insert(queue as usize, Queue { event_fd, ..Queue::default() });
    queue
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    let found = world().queues.remove(&(queue as usize)).expect("a live queue");
    assert_eq!(found.unacknowledged, 0, "the real one would wait here for ever");
    // SAFETY: made above, once.
    unsafe { free(queue) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    cookie: *mut *mut c_void,
) -> c_int {
    let mut bytes = [0; 8];
    // SAFETY: a live channel and the caller's pointers; the queue lives, since its event was not acknowledged.
    unsafe {
        if !read_from((*channel).fd, &mut bytes) {
            return -1;
        }
        let found = usize::from_ne_bytes(bytes);
        world().queues.get_mut(&found).expect("a live queue").unacknowledged += 1;
        *queue = found as *mut ibv_cq;
        *cookie = (**queue).cq_context;
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: u32) {
    world().queues.get_mut(&(queue as usize)).expect("a live queue").unacknowledged -= count;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's structure and a live domain.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    let errno = world().knobs.of(CREATE_QP_ERRNO, 0);
    let refused = init.qp_type != IBV_QPT_RC || init.cap.max_send_wr > 1024 || init.cap.max_send_sge > 4;
    if errno != 0 || refused {
        fail(if errno != 0 { errno as c_int } else { libc::EINVAL });
        return ptr::null_mut();
    }
    // As real ones do: rounded up.
    init.cap.max_send_wr = init.cap.max_send_wr.next_power_of_two();
    let number = world().number();
    let pair = Pair {
        state: IBV_QPS_RESET,
        access: 0,
        peer: 0,
        endless_retry: false,
        cap: init.cap,
        send_queue: init.send_cq as usize,
        receive_queue: init.recv_cq as usize,
        receives: VecDeque::new(),
        sends: VecDeque::new(),
    };
    world().pairs.insert(number, pair);
    leak(ibv_qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: ptr::null_mut(),
        handle: 0,
        qp_num: number,
        state: IBV_QPS_RESET,
        qp_type: IBV_QPT_RC,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: live structures.
    let (number, attributes) = unsafe { ((*qp).qp_num, &*attributes) };
    let mut world = world();
    let rtr_errno = world.knobs.of(RTR_ERRNO, 0) as c_int;
    let pair = world.pairs.get_mut(&number).expect("a live pair");
    let init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let rtr = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    let rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    // Exactly what the kernel asks for in these steps of a reliable connection.
    match (pair.state, attributes.qp_state, mask as u32 & !IBV_QP_STATE) {
        (_, IBV_QPS_ERR, 0) => {}
        (IBV_QPS_RESET, IBV_QPS_INIT, given) if given == init && attributes.port_num == 1 => {
            pair.access = attributes.qp_access_flags;
        }
        (IBV_QPS_INIT, IBV_QPS_RTR, given) if given == rtr && attributes.ah_attr.is_global == 1 => {
            if rtr_errno != 0 {
                return rtr_errno;
            }
            pair.peer = attributes.dest_qp_num;
        }
        (IBV_QPS_RTR, IBV_QPS_RTS, given) if given == rts => {
            pair.endless_retry = attributes.rnr_retry == 7;
        }
        _ => return libc::EINVAL,
    }
    pair.state = attributes.qp_state;
    if pair.state == IBV_QPS_ERR {
        world.flush(number);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _: c_int,
    _: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: live structures.
    unsafe { (*attributes).qp_state = world().pairs[&(*qp).qp_num].state };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: made above, live until freed here.
    unsafe {
        world().pairs.remove(&(*qp).qp_num).expect("a live pair");
        free(qp)
    }
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    let mut world = world();
    let entries = &mut world.queues.get_mut(&(queue as usize)).expect("a live queue").entries;
    let count = entries.len().min(room as usize);
    for (index, entry) in entries.drain(..count).enumerate() {
        // SAFETY: the caller's array of `room` entries.
        unsafe { *out.add(index) = entry };
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, _: c_int) -> c_int {
    world().queues.get_mut(&(queue as usize)).expect("a live queue").armed = true;
    0
}

unsafe fn pieces(list: *mut ibv_sge, count: c_int) -> Vec<ibv_sge> {
    // SAFETY: the caller's array; an empty one may be anywhere.
    if count == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec() }
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    refused: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a live pair and a chain of requests, as the caller promises.
    unsafe {
        let number = (*qp).qp_num;
        while let Some(raw) = request.as_ref() {
            let mut world = world();
            let pair = world.pairs.get_mut(&number).expect("a live pair");
            let errno = match pair.state {
                IBV_QPS_RTS | IBV_QPS_ERR if pair.sends.len() >= pair.cap.max_send_wr as usize => {
                    libc::ENOMEM
                }
                IBV_QPS_RTS | IBV_QPS_ERR if raw.num_sge as u32 <= pair.cap.max_send_sge => 0,
                _ => libc::EINVAL,
            };
            if errno != 0 {
                *refused = request;
                return errno;
            }
            let pieces = pieces(raw.sg_list, raw.num_sge);
            let inline = (raw.send_flags & IBV_SEND_INLINE != 0).then(|| {
                pieces
                    .iter()
                    .flat_map(|piece| {
                        std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize)
                    })
                    .copied()
                    .collect()
            });
            pair.sends.push_back(Sending {
                id: raw.wr_id,
                opcode: raw.opcode,
                flags: raw.send_flags,
                immediate: raw.imm_data,
                remote: raw.wr.rdma.remote_addr,
                key: raw.wr.rdma.rkey,
                pieces,
                inline,
            });
            world.progress(number);
            request = raw.next;
        }
    }
    0
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    refused: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a live pair and one request, as our own layer posts them.
    let (number, raw) = unsafe { ((*qp).qp_num, &*request) };
    let mut world = world();
    let pair = world.pairs.get_mut(&number).expect("a live pair");
    let errno = match pair.state {
        IBV_QPS_RESET => libc::EINVAL,
        _ if pair.receives.len() >= pair.cap.max_recv_wr as usize => libc::ENOMEM,
        _ => 0,
    };
    if errno != 0 {
        // SAFETY: the caller's pointer.
        unsafe { *refused = request };
        return errno;
    }
    // SAFETY: the caller's array.
    pair.receives.push_back((raw.wr_id, unsafe { pieces(raw.sg_list, raw.num_sge) }));
    let peer = pair.peer;
    if pair.state == IBV_QPS_ERR {
        world.flush(number);
    }
    world.progress(peer);
    0
}
