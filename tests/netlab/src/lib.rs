//! A network of hosts on one machine, for tests and measurements between hosts.
//!
//! A host is a network namespace with its own host name. Its network cards are TAP devices, and the switch between them
//! is a thread of this process. The parts, from the bottom up:
//!
//! - [`link`]: the effect of one cable on packets, as a pure function of packets and times;
//! - [`fabric`]: all cables and the switch between them, also in virtual time;
//! - `switch`: the thread that moves frames between the fabric and the devices, in real time;
//! - [`lab`]: the namespaces with their addresses and routes, and the commands that run in them;
//! - [`inside`]: the namespaces of the laboratory itself, so that nothing outlives it, however it ends.
//!
//! docs/netlab.md shows the commands.

pub mod args;
pub mod fabric;
pub mod inside;
pub mod lab;
pub mod link;
pub mod network;
pub mod quantity;
pub mod ranks;
mod switch;
mod system;

pub use lab::{Host, Lab};
pub use network::Network;
