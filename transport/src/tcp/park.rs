//! Sleeping: one epoll descriptor that represents all sockets of an endpoint.
//!
//! Sockets are registered once, edge-triggered, for all events. Registration costs nothing until the owner sleeps or
//! asks for ready sockets for the first time, because only then are the sockets registered. A timer in the same set
//! ends sleeps that no socket would end, such as for an address that does not answer, or a connection that does not
//! identify itself.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// Owner of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The acceptor, a pending connection or a dial. All of them are stepped whenever one has an event.
    Connecting,
    /// The timer.
    Timer,
    /// The link of this number.
    Link(u32),
}

impl Whose {
    const CONNECTING: u64 = u64::MAX;
    const TIMER: u64 = u64::MAX - 1;

    fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Connecting => Self::CONNECTING,
            Self::Timer => Self::TIMER,
            Self::Link(number) => u64::from(number),
        })
    }

    fn of(data: epoll::EventData) -> Self {
        match data.u64() {
            Self::CONNECTING => Self::Connecting,
            Self::TIMER => Self::Timer,
            number => Self::Link(number as u32),
        }
    }
}

/// An event of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stir {
    pub(super) whose: Whose,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) hung_up: bool,
}

/// The epoll set, with its timer.
#[derive(Debug)]
pub(super) struct Park {
    epoll: OwnedFd,
    timer: OwnedFd,
}

/// Maximum number of events taken per call to the kernel.
const STIRS: usize = 64;

impl Park {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, Whose::Timer.data(), events)?;
        Ok(Self { epoll, timer })
    }

    /// Watches a descriptor until it is closed. If it is watched already, its owner is replaced.
    pub(super) fn watch(&self, fd: impl AsFd, whose: Whose) -> io::Result<()> {
        let fd = fd.as_fd();
        let events =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        match epoll::add(&self.epoll, fd, whose.data(), events) {
            Err(rustix::io::Errno::EXIST) => Ok(epoll::modify(&self.epoll, fd, whose.data(), events)?),
            other => Ok(other?),
        }
    }

    /// Reports all events since the last call.
    pub(super) fn stirs(&self, mut each: impl FnMut(Stir)) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            let mut room = [const { MaybeUninit::uninit() }; STIRS];
            let ready = match epoll::wait(&self.epoll, &mut room, Some(&now)) {
                Ok((ready, _)) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                // Nothing else can be wrong with a descriptor that this struct owns.
                Err(_) => return,
            };
            for event in &*ready {
                let (flags, data) = (event.flags, event.data);
                let has = |wanted| flags.intersects(wanted);
                let over = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
                each(Stir {
                    whose: Whose::of(data),
                    readable: has(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | over),
                    writable: has(epoll::EventFlags::OUT | over),
                    hung_up: has(epoll::EventFlags::RDHUP | over),
                });
            }
            if ready.len() < STIRS {
                return;
            }
        }
    }

    /// Ends the sleep at `when`, or never.
    pub(super) fn set_timer(&self, when: Option<Instant>) -> io::Result<()> {
        // Zero would disarm the timer, so a time that has passed becomes a nanosecond from now.
        let left =
            when.map(|when| when.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        let left = left.unwrap_or(Duration::ZERO);
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
