//! Probing: describes a waiting message without receiving it.

use std::ops::RangeInclusive;
use std::time::Duration;

use kolo_transport::Piece;

use super::Communicator;
use crate::call::transfer_tag;
use crate::communicator::{Core, CoreGuard};
use crate::drive::{self, Ticket};
use crate::engine::{ANY_SOURCE, Found, Id, Kind, TransferJob, label};
use crate::error::Result;
use crate::types::DataType;

/// A message that has arrived and that no receive has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingMessage {
    /// Rank that sent it.
    pub source: u32,
    /// Its tag.
    pub tag: u32,
    /// Length in bytes.
    pub bytes: usize,
    /// Type of its elements. `None` if the tag fits no type in this communicator; no receive would take such a
    /// message.
    pub data_type: Option<DataType>,
}

/// # Waiting messages
impl Communicator {
    /// Waits for a message from rank `source`, or from any rank, whose tag is one of `tags`, and describes it. The
    /// message stays for the next receive that names its source and tag, which may be another thread's. Messages that
    /// receives have already asked for are not seen. Blocks for as long as a receive would.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    pub fn probe(&self, source: Option<u32>, tags: RangeInclusive<u32>) -> Result<WaitingMessage> {
        self.probe_within(source, tags, self.shared.config.timeout)
    }

    /// Like [`Communicator::probe`], with a time-out of its own.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    pub fn probe_within(
        &self,
        source: Option<u32>,
        tags: RangeInclusive<u32>,
        limit: Duration,
    ) -> Result<WaitingMessage> {
        let shared = &self.shared;
        drive::lend(shared, || {
            let (core, ticket) = self.post_probe(source, tags)?;
            let mut core = drive::wait_for(shared, core, ticket.id, ticket.waited, limit)?;
            let found = self.describe(&core, ticket.id);
            core.engine.release(ticket.id);
            Ok(found)
        })
    }

    /// Like [`Communicator::probe`], but never blocks: returns `None` if no such message is there. A sent message may
    /// be seen only after some calls.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    pub fn probe_now(
        &self,
        source: Option<u32>,
        tags: RangeInclusive<u32>,
    ) -> Result<Option<WaitingMessage>> {
        /// Rounds of progress. The first takes messages that have arrived; the second examines those that were behind
        /// them.
        const LOOKS: usize = 2;
        let shared = &self.shared;
        drive::lend(shared, || {
            let (mut core, ticket) = self.post_probe(source, tags)?;
            for _ in 0..LOOKS {
                if core.engine.is_done(ticket.id) {
                    break;
                }
                core.progress();
                if core.engine.failure().is_some() {
                    drop(core);
                    return Err(drive::fail(shared, ticket.waited));
                }
            }
            if !core.engine.is_done(ticket.id) {
                core.engine.withdraw_probe(ticket.id);
                return Ok(None);
            }
            let found = self.describe(&core, ticket.id);
            core.engine.release(ticket.id);
            Ok(Some(found))
        })
    }

    pub(super) fn post_probe(
        &self,
        source: Option<u32>,
        tags: RangeInclusive<u32>,
    ) -> Result<(CoreGuard<'_>, Ticket)> {
        const LABEL: &str = "probe";
        self.check_peer(LABEL, source)?;
        if tags.is_empty() {
            return Err(self.usage(
                LABEL,
                format!("the range of tags from {} to {} is empty", tags.start(), tags.end()),
            ));
        }
        let (mut core, waited) = self.begin(LABEL, None, 1)?;
        self.check_probing(&core, "probe; receive the expected message without probing", waited)?;
        let memory = Piece { ptr: std::ptr::null_mut(), len: 0 };
        let peer = source.unwrap_or(ANY_SOURCE);
        let job =
            TransferJob { kind: Kind::Recv, peer, tag: 0, labels: Some(tags), memory, gpu: None, keep: None };
        // SAFETY: a probe has no buffer.
        match unsafe { core.engine.transfer(job) } {
            Ok(id) => Ok((core, Ticket { id, waited })),
            Err(error) => Err(self.not_posted(core, error, waited)),
        }
    }

    fn describe(&self, core: &Core, id: Id) -> WaitingMessage {
        let Found { source, tag, bytes } = core.engine.found(id).unwrap_or_default();
        let of = |data_type: &DataType| transfer_tag(self.shared.group.id, *data_type, label(tag)) == tag;
        WaitingMessage { source, tag: label(tag), bytes, data_type: DataType::ALL.into_iter().find(of) }
    }
}
