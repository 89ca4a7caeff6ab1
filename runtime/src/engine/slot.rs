//! Slots of operations.

use super::Owner;
use super::operation::{Job, Operation, Spare};

/// A slot, which serves one operation after the other.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Number of operations so far, which tells them apart.
    pub(super) generation: u16,
    pub(super) phase: Phase,
    pub(super) group: u16,
    /// Whether nobody needs the result, so that the slot is freed when the operation is done.
    pub(super) forgotten: bool,
    /// Number of the started collective whose end is to be noted.
    pub(super) number: Option<u64>,
    /// Keeps the buffers of the operation alive.
    pub(super) keep: Option<Owner>,
    /// Memory for the next operation.
    pub(super) spare: Spare,
}

#[derive(Debug, Default)]
pub(super) enum Phase {
    #[default]
    Free,
    /// A call may become an operation here.
    Reserved,
    Queued(Box<Job>),
    /// An operation is about to run, or was refused.
    Starting,
    Running(Operation),
    /// Another component carries the operation out.
    Elsewhere,
    Done,
}

impl Slot {
    /// Takes the next generation.
    pub(super) fn next_generation(&mut self) -> u16 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// Returns the running operation.
    pub(super) fn operation(&self) -> Option<&Operation> {
        if let Phase::Running(operation) = &self.phase { Some(operation) } else { None }
    }

    /// Returns the running operation, if it has this generation.
    pub(super) fn operation_mut(&mut self, generation: u16) -> Option<&mut Operation> {
        match &mut self.phase {
            Phase::Running(operation) if self.generation == generation => Some(operation),
            _ => None,
        }
    }

    /// Goes on to a phase in which nothing runs, and keeps the memory of an operation that has run.
    pub(super) fn end(&mut self, next: Phase) {
        if let Phase::Running(operation) = std::mem::replace(&mut self.phase, next) {
            self.spare = operation.end();
        }
    }
}
