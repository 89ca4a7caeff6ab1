//! Lists the RDMA devices of this machine and whether they work, or says why there are none.
//!
//! `cargo run -p kolo-verbs --example devices`. Exit code 0 if there is a usable device, 1 if not.

use std::process::ExitCode;

use kolo_verbs::{DeviceReport, MemoryLock, Probe, probe};

fn main() -> ExitCode {
    match probe() {
        Probe::Ready(devices) => {
            devices.iter().for_each(print);
            match MemoryLock::current() {
                MemoryLock::Unlimited => println!("lockable memory: unlimited"),
                MemoryLock::Limited { bytes } => println!("lockable memory: {bytes} bytes (ulimit -l)"),
            }
            ExitCode::SUCCESS
        }
        Probe::Absent(absence) => {
            println!("no RDMA here: {absence}\nto have it: {}", absence.remedy());
            ExitCode::FAILURE
        }
    }
}

fn print(device: &DeviceReport) {
    print!("{}: GUID {:016x}, {:?}", device.name, device.node_guid, device.transport);
    match device.numa_node {
        Some(node) => println!(", NUMA node {node}"),
        None => println!(),
    }
    for report in &device.ports {
        let port = &report.port;
        print!("  port {}: {}, {:?}", port.number, port.state, port.link_layer);
        if let Some(mtu) = port.active_mtu {
            print!(", MTU {}", mtu.bytes());
        }
        if let Some(rate) = port.rate_mbps {
            print!(", {} Gbit/s", f64::from(rate) / 1000.0);
        }
        if port.lid != 0 {
            print!(", LID {}", port.lid);
        }
        println!();
        let chosen = report.path().map(|path| path.gid_index);
        for gid in &report.gids {
            let mark = if chosen == Some(gid.index) { "  <- used unless chosen otherwise" } else { "" };
            let netdev = gid.netdev.as_deref().map(|name| format!(" on {name}")).unwrap_or_default();
            println!("    GID {}: {} {}{netdev}{mark}", gid.index, gid.gid, gid.kind);
        }
    }
    match &device.trouble {
        None => println!("  works"),
        Some(trouble) => println!("  cannot be used: {trouble}; {}", trouble.remedy()),
    }
}
