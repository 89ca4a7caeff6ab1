//! The end of a communicator is the end of this rank's part in the job, whatever handles are about.

use std::sync::Arc;

use super::cluster::Cluster;
use crate::error::Result;
use crate::types::ReduceOp;

#[test]
fn who_has_dropped_its_communicators_has_left_though_it_keeps_handles() -> Result<()> {
    Cluster::local(2, |comm| {
        let work = comm.all_reduce_start(vec![1_i32; 8], ReduceOp::Sum)?;
        let world = Arc::clone(&comm.shared.world);
        let part = comm.split(Some(0), 0)?.expect("a group for all");
        drop(comm);
        assert!(!world.control.is_closed(), "one that was split off is there");
        part.barrier()?;
        drop(part);
        assert!(world.control.is_closed(), "still in the job");
        drop(work);
        Ok(())
    })?
    .into_iter()
    .collect()
}
