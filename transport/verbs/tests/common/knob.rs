//! What tests set in the stand-in, for both sides.

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
}
