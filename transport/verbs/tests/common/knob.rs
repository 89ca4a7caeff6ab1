//! The tests' settings in the stand-in, for both sides.

/// A knob of the stand-in.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Knob {
    Devices = 0,
    ListErrno = 1,
    CreateQueuePairErrno = 2,
    NextStatus = 3,
    RegisterErrno = 4,
    PortState = 5,
    Transport = 6,
    RtrErrno = 7,
    Gids = 8,
    AsyncEvent = 9,
    OpenErrno = 10,
    /// The IPv4 address of GID 1; 192.0.2.1 if 0.
    Address = 11,
    /// Moves a queue pair to ERROR, as a device does that gives it up: the one of this place among all there are.
    FailPair = 12,
    /// Which queue pair or completion queue, by its place, an event is about.
    EventPlace = 13,
    /// Return value of `ibv_fork_init`.
    ForkErrno = 14,
    /// Bytes that may be registered, all regions together; without bound if 0.
    Lockable = 15,
}

/// Counts that can be asked of the stand-in.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Count {
    /// Objects made and not given back.
    Live = 0,
    /// Calls of `ibv_fork_init`, and regions that were there at the last.
    ForkCalls = 1,
    RegionsAtFork = 2,
    /// Registrations so far.
    Registrations = 3,
    /// Bytes that are registered now.
    Registered = 4,
    /// Queue pairs that there are.
    Pairs = 5,
}
