//! Faults of a simulated run, drawn from its seed.

use std::time::Duration;

use super::Random;

/// Something that happens to processes or cables.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// These processes end. Each of the others learns of each death at its own time, within a limit.
    Die(Vec<u32>),
    /// This process stops for this long.
    Pauses(u32, Duration),
    /// No message passes from `side` to the others for `length`; with `both_ways`, also none in the other direction.
    Cut { side: Vec<u32>, both_ways: bool, length: Duration },
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) processes: u32,
    /// The faults with their times.
    pub(super) faults: Vec<(Duration, Fault)>,
    /// One message in this many is lost; none if 0.
    pub(super) loses_one_in: u64,
    /// Longest time of a message on the network.
    pub(super) delay_max: Duration,
    /// Longest time between the beginning of an epoch and a member's call.
    pub(super) call_max: Duration,
    /// Whether members suspect each other without reason.
    pub(super) suspects: bool,
    /// How long members wait for those that do not call; for ever if `None`. If set, some members call much later.
    pub(super) patience: Option<Duration>,
    /// How long a member without a quorum goes on.
    pub(super) stranded_after: Duration,
}

/// Longer than any repair takes. A process that gave up earlier would be lost to the others.
const LONG: Duration = Duration::from_secs(20);

/// Faults begin before this time. After it everything is repaired, and the living must reach decisions.
pub(super) const MENDED: Duration = Duration::from_secs(6);

impl Scenario {
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = Random(seed);
        let processes = 2 + random.below(6) as u32;
        let count = random.below(7);
        let ms = |random: &mut Random, most: u64| Duration::from_millis(random.below(most));
        let mut faults: Vec<(Duration, Fault)> = (0..count)
            .map(|_| {
                // Many faults come within the first moments, while the first agreement is under way.
                let most = [400, 2000, MENDED.as_millis() as u64][random.below(3) as usize];
                let at = ms(&mut random, most);
                let victim = random.below(u64::from(processes)) as u32;
                let length = ms(&mut random, 3000);
                let fault = match random.below(5) {
                    0..=1 => Fault::Die(vec![victim]),
                    2 => Fault::Die((0..processes).filter(|_| random.one_in(2)).collect()),
                    3 => Fault::Pauses(victim, length),
                    _ => {
                        let side = (0..processes).filter(|_| random.one_in(2)).collect();
                        Fault::Cut { side, both_ways: random.one_in(2), length }
                    }
                };
                (at, fault)
            })
            .collect();
        faults.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            processes,
            faults,
            loses_one_in: [0, 0, 20, 4][random.below(4) as usize],
            delay_max: Duration::from_micros([200, 5_000, 300_000][random.below(3) as usize]),
            call_max: Duration::from_millis([1, 100, 2500][random.below(3) as usize]),
            suspects: random.one_in(4),
            patience: random.one_in(3).then(|| ms(&mut random, 2000)),
            stranded_after: if random.one_in(4) { ms(&mut random, 2000) } else { LONG },
        }
    }
}
