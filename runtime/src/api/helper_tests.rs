//! The helper thread and losses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use crate::control::{AbortCause, AbortKind};
use crate::drive;
use crate::error::Result;
use crate::types::ReduceOp;

/// All operations are over when a loss is heard of, so this rank needs nothing of the lost one, and the others must not
/// hear that it has given up.
#[test]
fn a_loss_after_the_last_operation_makes_nobody_give_up() -> Result<()> {
    let ranks = Cluster::local(2, |comm| {
        comm.all_reduce_start(vec![1_u8], ReduceOp::Sum)?.wait()?;
        comm.barrier()?;
        let shared = Arc::clone(&comm.shared);
        let loss = AbortCause::new(1 - comm.rank(), AbortKind::PeerLost, "a test");
        shared.membership.abort_flag().raise(loss);
        assert!(drive::call_helper(&shared), "there is a helper");
        let until = Instant::now() + Duration::from_secs(60);
        while shared.attendance.is_unattended() {
            assert!(Instant::now() < until, "the helper does not look");
            std::thread::yield_now();
        }
        // Waits for the end of the helper.
        drop(comm);
        assert!(shared.fault.cause().is_none() && !shared.membership.abort_flag().is_given_up());
        Ok(())
    })?;
    ranks.into_iter().collect()
}
