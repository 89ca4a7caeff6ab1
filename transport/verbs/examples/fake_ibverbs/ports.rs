//! The properties of a device, its port and its addresses.

use std::ffi::c_int;

use kolo_verbs::sys::*;

use crate::devices::name_of;
use crate::knob::Knob;
use crate::world;

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
    // SAFETY: the structure is the caller's.
    unsafe { *out = attributes };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the context is live, and its device is never freed.
    let is_first = unsafe { (*(*context).device).name == name_of("fake0") };
    let world = world();
    let mut attributes = ibv_port_attr::zeroed();
    attributes.state = world.knobs.of(Knob::PortState, IBV_PORT_ACTIVE.into()) as u32;
    attributes.max_mtu = 5;
    attributes.active_mtu = 3;
    attributes.gid_tbl_len = 8;
    attributes.max_msg_sz = 1 << 30;
    attributes.active_width = 2;
    attributes.active_speed = if is_first { world.knobs.of(Knob::FirstSpeed, 32) as u8 } else { 32 };
    attributes.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    // SAFETY: the structure is the caller's.
    unsafe { *out = attributes };
    0
}

fn gid(index: i64) -> Option<[u8; 16]> {
    match index {
        index if index >= world().knobs.of(Knob::Gids, 2) => None,
        0 => Some([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        _ => {
            let address = match world().knobs.of(Knob::Address, 0) {
                0 => [192, 0, 2, 1],
                given => (given as u32).to_be_bytes(),
            };
            let mut gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
            gid[12..].copy_from_slice(&address);
            Some(gid)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(_: *mut ibv_context, _: u8, index: c_int, out: *mut ibv_gid) -> c_int {
    // SAFETY: the structure is the caller's. An empty entry is all zero.
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
    // SAFETY: the structure is the caller's, and of the size just checked. Interface 1 is the loopback.
    unsafe { *out = ibv_gid_entry { gid, gid_index: index, port_num: port, gid_type: 2, ndev_ifindex: 1 } };
    0
}
