//! Probes beside receives, with the transport's reports in a given order.

use kolo_transport::{Channel, Envelope, Piece};

use super::engines;
use crate::engine::{ANY_SOURCE, Engine, Id, Kind, TransferJob};

/// Two messages are reported at the same time. The one that is examined first is for nobody, and must not make the
/// probe see the other, which an earlier receive takes.
#[test]
fn a_probe_does_not_see_a_message_for_an_earlier_receive() {
    const WANTED: u64 = 7;
    let mut engine = engines(3).swap_remove(0);
    let mut start = |labels| -> Id {
        let memory = Piece { ptr: std::ptr::null_mut(), len: 0 };
        let (kind, peer, tag) = (Kind::Recv, ANY_SOURCE, WANTED);
        let job = TransferJob { kind, peer, tag, labels, memory, gpu: None, keep: None };
        // SAFETY: it has no memory.
        unsafe { engine.transfer(job) }.unwrap()
    };
    let (receive, probe) = (start(None), start(Some(7..=7)));
    for (peer, tag) in [(1, WANTED), (2, WANTED + 1)] {
        engine.transfers.waits(Envelope { on: Channel { peer, index: 0 }, tag, len: 0 });
    }
    let Engine { transfers, io, .. } = &mut engine;
    transfers.settle(&mut io.links).unwrap();
    assert_eq!(engine.waiting_for(receive), [1], "the receive has this message");
    assert!(!engine.is_done(probe), "it has seen the message of the receive");
}
