//! GPUDirect: how an RDMA adapter reaches a GPU's memory.
//!
//! There are three ways, from best to worst:
//!
//! 1. **dma-buf**: the GPU's driver exports a range of its memory as a descriptor, the adapter's driver registers that.
//! 2. **peer memory**: a kernel module lets the adapter's driver ask the GPU's about addresses, which are then registered as
//!    any memory is.
//! 3. **staging**: the bytes are copied through pinned memory of the host, in pieces, so that copying one and sending
//!    another overlap: [`Copies`] are what does it, and what is copied when is the affair of whoever sends.
//!
//! [`decide`] says which, and why, from what a [`Drivers`] table answers: a pure function, tested against tables for
//! every branch. [`Cuda`] is the table of this machine; libcuda is loaded at run time and nothing of it is needed to
//! build. [`Driver`] tells whose memory an address is of.
//!
//! # What is seen when
//!
//! An adapter that writes into a GPU's memory writes over PCIe, and a completion on the processor's side does not say that
//! the GPU sees the bytes. So whoever is told of a message must not start a kernel that reads it before a *flush*
//! ([`Flush`]): a call of the driver, where it has one; a read over the same way back, by RDMA; or none, where the device says
//! that its writes are in order for all readers. The flush comes between the completion and the event that tells of
//! the message, and before the GPU itself copies what came: once for all that an operation has received, not per write.

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
pub use path::{DmaBuf, Flush, Path, Plan, Refused, Ruled, Wish};
