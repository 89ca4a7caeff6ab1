//! The tests' settings in the stand-in, compiled into both.

/// A setting of the stand-in.
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
    /// Moves a queue pair to ERROR, as a device does that gives it up. The value is the pair's place in the order of
    /// all pairs.
    FailPair = 12,
    /// Place of the queue pair or completion queue that an event is about.
    EventPlace = 13,
    /// Return value of `ibv_fork_init`.
    ForkErrno = 14,
    /// Limit on the bytes of all regions together; 0 means no limit.
    Lockable = 15,
    /// Error of registrations for writing, as of read-only memory.
    WritableErrno = 16,
    /// The speed of the first device's port, in the encoding of `active_speed`.
    FirstSpeed = 17,
}

/// Counts that the stand-in keeps.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Count {
    /// Objects that were made and not freed.
    Live = 0,
    /// Calls of `ibv_fork_init`, and the number of regions at the last call.
    ForkCalls = 1,
    RegionsAtFork = 2,
    /// Number of registrations so far.
    Registrations = 3,
    /// Number of bytes that are registered now.
    Registered = 4,
    /// Number of queue pairs.
    Pairs = 5,
    /// Number of requests whose bytes the processor copied when they were posted.
    Inline = 6,
}
