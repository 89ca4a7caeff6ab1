//! Notes about processes that did not fit, for the error message if the job does not gather.

use std::net::IpAddr;

/// Most notes about processes that got through the handshake.
const MAX_KNOWN: usize = 8;

/// Most notes about others, so that a flood of strangers leaves the error readable.
const MAX_STRANGERS: usize = 4;

/// Most notes about others at one address.
const MAX_AT_ADDRESS: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Misfits {
    known: Vec<String>,
    strangers: Vec<Stranger>,
}

/// Processes at one address that were turned away before they had proven anything.
#[derive(Debug)]
struct Stranger {
    ip: IpAddr,
    problem: String,
    count: u64,
}

impl Misfits {
    /// Notes a process that got through the handshake, or a lack on rank 0's side, unless it is already noted.
    pub(super) fn note(&mut self, note: String) {
        if self.known.len() < MAX_KNOWN && !self.known.contains(&note) {
            self.known.push(note);
        }
    }

    /// Notes a process that did not get through the handshake. Returns whether its like has not been noted yet, and is
    /// now.
    pub(super) fn note_stranger(&mut self, ip: IpAddr, problem: &str) -> bool {
        let ip = ip.to_canonical();
        if let Some(same) = self.strangers.iter_mut().find(|same| same.ip == ip && same.problem == problem) {
            same.count += 1;
            return false;
        }
        let at_address = self.strangers.iter().filter(|other| other.ip == ip).count();
        let has_room = self.strangers.len() < MAX_STRANGERS && at_address < MAX_AT_ADDRESS;
        if has_room {
            self.strangers.push(Stranger { ip, problem: problem.to_owned(), count: 1 });
        }
        has_room
    }

    /// Returns the notes in words; `None` if there are none.
    pub(super) fn text(&self) -> Option<String> {
        let stranger = |Stranger { ip, problem, count }: &Stranger| match count {
            1 => format!("{ip}: {problem}"),
            count => format!("{ip}: {problem} ({count} times)"),
        };
        let notes: Vec<String> =
            self.known.iter().cloned().chain(self.strangers.iter().map(stranger)).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}
