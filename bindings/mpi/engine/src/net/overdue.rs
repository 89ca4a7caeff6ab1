//! The text for a wait that has reached its limit: the messages for which this rank waits, and those that no receive matches.

use super::Net;
use super::direct::Direct;
use super::wire::Op;

/// The most messages of each kind that a text names. Longer texts exceed the standard's length.
const NAMED: usize = 2;
/// The bits of a context that keep the messages of users (0), collectives and the library apart.
const USE: u32 = 3;

impl Net {
    /// Describes what this rank waits for; `None` if no message is outstanding.
    pub(crate) fn overdue(&self) -> Option<String> {
        let awaited = self.awaited();
        if awaited.is_empty() {
            return None;
        }
        let mut text = format!("rank {} of the world still waits for {}", self.rank, list(awaited));
        let strays = self.strays();
        if !strays.is_empty() {
            text += &format!("; no receive matches {}", list(strays));
        }
        Some(text)
    }

    fn awaited(&self) -> Vec<String> {
        let mut awaited = Vec::new();
        for (context, mailbox) in self.ordered() {
            awaited.extend(mailbox.posted.iter().map(|recv| incoming(context, recv.source, recv.tag)));
        }
        awaited.extend(self.probed.iter().map(|(context, source, tag)| incoming(*context, *source, *tag)));
        for slot in &self.slots {
            match &slot.op {
                Op::Direct(Direct::Out { source, context, tag, .. }) => {
                    awaited.push(incoming(*context, Some(*source), Some(*tag)));
                }
                Op::Bytes { source, .. } | Op::Head { from: source, recv: Some(_), .. } => {
                    awaited.push(format!("the rest of a message from rank {source}"));
                }
                Op::Send { to, .. } => awaited.push(format!("rank {to} to take a message")),
                _ => {}
            }
        }
        let mut parked: Vec<_> = self.parked.iter().collect();
        parked.sort_unstable_by_key(|(number, _)| **number);
        for (_, sent) in parked {
            let which = if sent.context & USE == 0 {
                format!("with tag {}", sent.tag)
            } else {
                String::from("of a collective call")
            };
            awaited.push(format!("rank {} to receive a message {which}", sent.to));
        }
        awaited
    }

    /// Returns the program's messages that no receive has matched.
    fn strays(&self) -> Vec<String> {
        let waits = |context: u32| {
            let has_posted = self.boxes.get(&context).is_some_and(|mailbox| !mailbox.posted.is_empty());
            has_posted || self.probed.iter().any(|(probed, ..)| *probed == context)
        };
        let ours: Vec<_> = self.ordered().into_iter().filter(|(context, _)| context & USE == 0).collect();
        let is_elsewhere = |context| ours.iter().any(|(other, _)| waits(*other)) && !waits(context);
        let mut strays = Vec::new();
        for (context, mailbox) in &ours {
            let on = if is_elsewhere(*context) { " on another communicator" } else { "" };
            strays.extend(mailbox.unmatched().map(|it| {
                format!("a message from rank {} with tag {} ({} bytes){on}", it.source, it.tag, it.bytes)
            }));
        }
        strays
    }

    /// Returns the mailboxes in the order of their contexts, so that a text does not depend on chance.
    fn ordered(&self) -> Vec<(u32, &super::Mailbox)> {
        let mut boxes: Vec<_> = self.boxes.iter().map(|(context, mailbox)| (*context, mailbox)).collect();
        boxes.sort_unstable_by_key(|(context, _)| *context);
        boxes
    }
}

fn incoming(context: u32, source: Option<u32>, tag: Option<i32>) -> String {
    let from = source.map_or_else(|| "any rank".to_owned(), |source| format!("rank {source}"));
    match (context & USE, tag) {
        (0, Some(tag)) => format!("a message from {from} with tag {tag}"),
        (0, None) => format!("a message from {from} with any tag"),
        _ => format!("a message of a collective call from {from}"),
    }
}

/// Joins the first texts, and counts the others.
fn list(mut texts: Vec<String>) -> String {
    let more = texts.len().saturating_sub(NAMED);
    texts.truncate(NAMED);
    let named = texts.join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
}
