//! GPUDirect: how an RDMA adapter reaches a GPU's memory.
//!
//! There are three ways, from best to worst:
//!
//! 1. **dma-buf**: the GPU's driver exports a range of its memory as a descriptor, and the adapter's driver registers
//!    it.
//! 2. **peer memory**: a kernel module lets the adapter's driver ask the GPU's driver about addresses, which are then
//!    registered like any memory.
//! 3. **staging**: the bytes are copied through pinned memory of the host, in pieces, so that copying one overlaps
//!    with sending another. [`Copies`] does the copying; the sender decides what is copied when.
//!
//! [`decide`] chooses the way from the answers of a [`Drivers`] table, and gives the reasons. It is a pure function,
//! tested with tables for every branch. [`Cuda`] is the table of this machine; it loads libcuda at run time and needs
//! no part of it to build. [`Driver`] finds out which GPU owns an address.
//!
//! # When the GPU sees the data
//!
//! An adapter writes into a GPU's memory over PCIe, and a completion on the CPU's side does not mean that the GPU
//! sees the bytes. A program that learns of a message must therefore not start a kernel that reads it before a
//! *flush* ([`Flush`]). The flush is a call of the driver, if it has one; otherwise a read over the same path, by
//! RDMA; or nothing, if the device reports that its writes are in order for all readers. It comes between the
//! completion and the event that reports the message, and before the GPU itself copies the data: once for everything
//! that an operation has received, not once per write.

mod copies;
mod cuda;
mod decide;
mod gpu;
mod library;
mod path;

pub use copies::Copies;
pub use cuda::Cuda;
pub use decide::{Drivers, decide};
pub use gpu::{Allocation, DeviceRange, Driver, Gpu, Owner, Pinned};
pub use path::{DmaBuf, Flush, Mode, Path, Plan, Refused, Ruled};
