//! Many symmetric buffers at once, which every rank uses and frees in an order of its own.

use kolo::Communicator;

use super::calls::{Memory, run};
use super::data::Call;
use super::failure::Result;
use crate::random::Random;

/// Makes, uses and frees symmetric buffers.
pub(super) fn windows(
    comm: &Communicator,
    memory: &Memory,
    (common, own): (&mut Random, &mut Random),
    halved: u32,
) -> Result {
    let most = common.pick(&[4096, 50_000, 1 << 20]) >> halved;
    for _ in 0..4 + common.index(12) {
        match common.index(4) {
            0 => {
                for _ in 0..1 + common.index(6) {
                    let buffer = comm.alloc_raw(common.index(most + 1))?;
                    memory.put([buffer]);
                }
            }
            1 => memory.keep(own.index(12), own),
            _ => {
                memory.shuffle(own);
                let call = Call::draw(common, comm.world_size() as usize, halved + 1);
                let is_started = common.index(6) == 0;
                for finish in run(comm, memory, call, is_started, own)? {
                    finish(own)?;
                }
            }
        }
    }
    memory.keep(5, own);
    Ok(())
}
