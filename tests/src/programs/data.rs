//! Collective calls with random arguments, the memory of one rank for them, and their expected results.

use std::ops::{Deref, DerefMut, Range};

use kolo::internal::verify::{Problem, count_wrong_bytes, fill_bytes};
use kolo::{Collective, DataType, RawCall, RawCallV, ReduceOp, SymmetricBuffer};

use crate::random::Random;
use crate::reference::{is_defined, reduces};

/// Lengths in bytes at which code takes another path: cells, claims, pieces, shuttles, exchanges, segments, rendezvous.
const LIMITS: [usize; 25] = [
    0,
    1,
    8,
    24,
    104,
    112,
    128,
    512,
    1024,
    2048,
    4096,
    8192,
    16 << 10,
    32 << 10,
    48 << 10,
    64 << 10,
    96 << 10,
    120 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    648 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];

/// Most bytes of all blocks of a call on one rank.
const CALL_MAX: usize = 6 << 20;

/// Byte of memory that no call may change.
const UNTOUCHED: u8 = 0xA5;

/// Draws a number of elements near one of the limits, mostly a short one.
pub(super) fn length(random: &mut Random, size: usize, halved: u32) -> usize {
    let mut at = random.index(LIMITS.len());
    if random.index(4) > 0 {
        at = at.min(random.index(LIMITS.len()));
    }
    let count = LIMITS[at] / size;
    let count = match random.index(5) {
        0 => count.saturating_sub(1),
        1 => count + 1,
        2 => count + random.index(300),
        _ => count,
    };
    count >> halved
}

/// A collective call on which all ranks of a communicator agree.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The collective.
    pub(super) collective: Collective,
    data_type: DataType,
    op: ReduceOp,
    root: usize,
    ranks: usize,
    /// Elements of the blocks: of all ranks, or (all-to-all) from each rank to each.
    counts: Vec<Vec<usize>>,
    is_even: bool,
    seed: u64,
}

impl Call {
    /// Draws a call.
    pub(super) fn draw(random: &mut Random, ranks: usize, halved: u32) -> Self {
        let collective = random.pick(&Collective::ALL);
        let data_type = random.pick(&DataType::ALL);
        let op = random.pick(&ReduceOp::ALL);
        let op = if is_defined(collective, op, data_type) { op } else { ReduceOp::Max };
        let is_even = !is_uneven(collective) || random.index(2) == 0;
        let mut base = length(random, data_type.size(), halved);
        if is_uneven(collective) && random.index(2) == 0 {
            base /= ranks;
        }
        if is_uneven(collective) {
            base = base.min(CALL_MAX / data_type.size() / ranks);
        }
        let rows = if collective == Collective::AllToAll { ranks } else { 1 };
        let style = random.index(4);
        let most = CALL_MAX / data_type.size() / ranks;
        let mut count = |at: usize| match style {
            _ if is_even => base,
            0 => random.index(2 * base + 1).min(most),
            1 => {
                if at == 1 % ranks {
                    (base * ranks).min(most)
                } else {
                    0
                }
            }
            2 => {
                if random.index(2) == 0 {
                    0
                } else {
                    base
                }
            }
            _ => base + random.index(3),
        };
        let counts = (0..rows).map(|row| (0..ranks).map(|at| count((at + row) % ranks)).collect()).collect();
        let (root, seed) = (random.index(ranks), random.number());
        Self { collective, data_type, op, root, ranks, counts, is_even, seed }
    }

    /// Returns the call with other data.
    #[must_use]
    pub(super) fn again(&self, number: u64) -> Self {
        Self { seed: self.seed ^ number << 40, ..self.clone() }
    }

    /// Returns whether the call has blocks of equal length.
    #[must_use]
    pub(super) const fn is_even(&self) -> bool {
        self.is_even
    }

    /// Returns the elements of each block of a rank's input and output.
    fn blocks(&self, rank: usize) -> (Vec<usize>, Vec<usize>) {
        use Collective as C;
        let is_root = rank == self.root;
        let all = &self.counts[0];
        let (one, own) = (vec![all[0]], vec![all[rank]]);
        let at_root = |blocks: Vec<usize>| if is_root { blocks } else { Vec::new() };
        match self.collective {
            C::AllReduce | C::Scan | C::ExScan => (one.clone(), one),
            C::Broadcast => (at_root(one.clone()), one),
            C::Reduce => (one.clone(), at_root(one)),
            C::AllGather => (own, all.clone()),
            C::ReduceScatter => (all.clone(), own),
            C::Gather => (own, at_root(all.clone())),
            C::Scatter => (at_root(all.clone()), own),
            C::AllToAll => (self.counts[rank].clone(), self.counts.iter().map(|row| row[rank]).collect()),
            C::Barrier => (Vec::new(), Vec::new()),
        }
    }

    fn problem(&self) -> Problem {
        Problem::new(self.data_type, self.op, self.ranks as u32, self.seed).expect("a defined operator")
    }

    /// Makes a rank's memory for the call: in place or not, at any address, in symmetric buffers if there are any.
    pub(super) fn prepare(
        &self,
        rank: usize,
        own: &mut Random,
        pool: &mut Vec<SymmetricBuffer<u8>>,
    ) -> Prepared {
        let size = self.data_type.size();
        let (inputs, outputs) = self.blocks(rank);
        let bytes = |blocks: &[usize]| blocks.iter().sum::<usize>() * size;
        let (from, to) = (bytes(&inputs), bytes(&outputs));
        let mut input = Place { store: 0, at: own.pick(&[0, 0, 8, 64, 1, 4096, 13]), len: from };
        let mut output = Place { store: 1, at: own.pick(&[0, 0, 8, 64, 3, 4096, 200]), len: to };
        let is_in_place = self.is_even && own.index(2) == 0 && !inputs.is_empty() && !outputs.is_empty();
        if is_in_place {
            let block = self.counts[0][0] * size;
            match self.collective {
                Collective::AllGather | Collective::Gather => {
                    input = Place { store: 1, at: output.at + rank * block, len: from };
                }
                Collective::ReduceScatter | Collective::Scatter => {
                    output = Place { store: 0, at: input.at + rank * block, len: to };
                }
                _ => input = Place { store: 1, at: output.at, len: from },
            }
        }
        let mut need = [0, 0];
        for place in [&input, &output] {
            need[place.store] = need[place.store].max(place.at + place.len + own.index(100));
        }
        let stores = need.map(|len| match pool.pop() {
            Some(buffer) if buffer.len() >= len => Store::Symmetric(buffer),
            other => {
                pool.extend(other);
                Store::Own(vec![0; len])
            }
        });
        let mut prepared = Prepared {
            call: self.clone(),
            rank,
            stores,
            input,
            output,
            is_in_place,
            counts: [inputs, outputs],
        };
        prepared.fill();
        prepared
    }
}

/// Returns whether the collective has a form with blocks of unequal length.
fn is_uneven(collective: Collective) -> bool {
    use Collective as C;
    matches!(collective, C::AllGather | C::ReduceScatter | C::Gather | C::Scatter | C::AllToAll)
}

/// Memory of a rank.
#[derive(Debug)]
enum Store {
    Own(Vec<u8>),
    Symmetric(SymmetricBuffer<u8>),
}

impl Deref for Store {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Symmetric(bytes) => bytes,
        }
    }
}

impl DerefMut for Store {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Symmetric(bytes) => bytes,
        }
    }
}

/// Place of a buffer in one of the two stores.
#[derive(Debug)]
struct Place {
    store: usize,
    at: usize,
    len: usize,
}

impl Place {
    const fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// A rank's part of a call, with its memory.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The call.
    pub(super) call: Call,
    rank: usize,
    stores: [Store; 2],
    input: Place,
    output: Place,
    is_in_place: bool,
    counts: [Vec<usize>; 2],
}

impl Prepared {
    fn fill(&mut self) {
        self.stores.iter_mut().for_each(|store| store.fill(UNTOUCHED));
        let Place { store, .. } = self.input;
        let input = &mut self.stores[store][self.input.range()];
        fill_input(&self.call, self.rank, input);
    }

    /// Returns the call for the even forms.
    pub(super) fn raw(&mut self) -> RawCall {
        let (input, output) = self.pointers();
        let problem = self.call.problem();
        let op = if reduces(self.call.collective) { problem.op_of(self.rank as u32) } else { ReduceOp::Sum };
        let Call { collective, data_type, root, .. } = self.call;
        RawCall { collective, input, output, count: self.call.counts[0][0], data_type, op, root: root as u32 }
    }

    /// Returns the call for the forms with blocks of unequal length.
    pub(super) fn raw_v<'a>(&mut self, counts: &'a [Vec<usize>; 2]) -> RawCallV<'a> {
        let RawCall { collective, input, output, data_type, op, root, .. } = self.raw();
        let [input_counts, output_counts] = counts;
        RawCallV { collective, input, input_counts, output, output_counts, data_type, op, root }
    }

    /// Returns the elements of each block of the input and the output.
    #[must_use]
    pub(super) fn counts(&self) -> [Vec<usize>; 2] {
        self.counts.clone()
    }

    fn pointers(&mut self) -> (*const u8, *mut u8) {
        let [a, b] = &mut self.stores;
        let bases = [a.as_mut_ptr(), b.as_mut_ptr()];
        let at = |place: &Place, counts: &[usize]| match counts {
            [] => std::ptr::null_mut(),
            _ => bases[place.store].wrapping_add(place.at),
        };
        (at(&self.input, &self.counts[0]).cast_const(), at(&self.output, &self.counts[1]))
    }

    /// Checks the result, and that nothing else has changed; returns the symmetric buffers.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub(super) fn check(self) -> Result<Vec<SymmetricBuffer<u8>>, String> {
        let wrong = self.wrong();
        if wrong > 0 {
            let Self { call, rank, is_in_place, input, output, .. } = &self;
            return Err(format!(
                "{wrong} wrong on rank {rank}, in place {is_in_place}, input {input:?}, output {output:?}, {call:?}"
            ));
        }
        if let Some(what) = self.spilt() {
            return Err(format!("{what} on rank {}: {:?}", self.rank, self.call));
        }
        let mut pool = Vec::new();
        for store in self.stores {
            if let Store::Symmetric(buffer) = store {
                pool.push(buffer);
            }
        }
        Ok(pool)
    }

    /// Ends a call that has failed.
    ///
    /// # Errors
    /// A text that says what is wrong with its memory.
    pub(super) fn failed(self) -> Result<Remains, String> {
        match self.spilt() {
            Some(what) => Err(format!("{what} on rank {} in a failed call: {:?}", self.rank, self.call)),
            None => Ok(Remains { copies: [0, 1].map(|store| self.stores[store].to_vec()), prepared: self }),
        }
    }

    fn spilt(&self) -> Option<&'static str> {
        for (at, store) in self.stores.iter().enumerate() {
            let used = [&self.input, &self.output].into_iter().filter(|place| place.store == at);
            let from = used.clone().map(|place| place.at).min().unwrap_or(store.len());
            let to = used.map(|place| place.at + place.len).max().unwrap_or(from);
            if store[..from].iter().chain(&store[to..]).any(|byte| *byte != UNTOUCHED) {
                return Some("bytes beside the buffers have changed");
            }
        }
        if self.is_in_place {
            return None;
        }
        let mut input = vec![0; self.input.len];
        fill_input(&self.call, self.rank, &mut input);
        let found = &self.stores[self.input.store][self.input.range()];
        (found != input).then_some("the input has changed")
    }

    fn wrong(&self) -> u64 {
        use Collective as C;
        let (call, rank) = (&self.call, self.rank);
        let (size, problem, ranks) = (call.data_type.size(), call.problem(), call.ranks as u32);
        let output = &self.stores[self.output.store][self.output.range()];
        let before = |counts: &[usize], rank: usize| counts[..rank].iter().sum::<usize>();
        let (mut wrong, mut at) = (0, 0);
        for (block, count) in self.counts[1].iter().enumerate() {
            let got = &output[at..at + count * size];
            let moved = |from: usize, offset: usize| {
                count_wrong_bytes(call.seed, from as u32, (offset * size) as u64, got)
            };
            wrong += match call.collective {
                C::AllReduce | C::Reduce => problem.count_wrong(ranks, 0, got),
                C::ReduceScatter => problem.count_wrong(ranks, before(&call.counts[0], rank) as u64, got),
                C::Scan => problem.count_wrong(rank as u32 + 1, 0, got),
                C::ExScan if rank > 0 => problem.count_wrong(rank as u32, 0, got),
                C::ExScan if self.is_in_place => {
                    let mut own = vec![0; got.len()];
                    problem.fill(0, 0, &mut own);
                    u64::from(own != got)
                }
                C::ExScan => got.iter().filter(|byte| **byte != UNTOUCHED).count() as u64,
                C::Broadcast => moved(call.root, 0),
                C::AllGather | C::Gather => moved(block, 0),
                C::Scatter => moved(call.root, before(&call.counts[0], rank)),
                C::AllToAll => {
                    let row = &call.counts[if call.is_even { 0 } else { block }];
                    moved(block, before(row, rank))
                }
                C::Barrier => 0,
            };
            at += count * size;
        }
        wrong
    }
}

/// The memory of a failed call, and its contents when the call returned.
#[derive(Debug)]
pub(super) struct Remains {
    prepared: Prepared,
    copies: [Vec<u8>; 2],
}

impl Remains {
    /// Checks that the memory has not changed since.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub(super) fn check(&self) -> Result<(), String> {
        let Prepared { stores, rank, call, .. } = &self.prepared;
        let is_same = |(store, copy): (&Store, &Vec<u8>)| **store == **copy;
        match stores.iter().zip(&self.copies).all(is_same) {
            true => Ok(()),
            false => Err(format!("memory has changed on rank {rank} after a failed call: {call:?}")),
        }
    }
}

fn fill_input(call: &Call, rank: usize, input: &mut [u8]) {
    if reduces(call.collective) {
        call.problem().fill(rank as u32, 0, input);
    } else {
        fill_bytes(call.seed, rank as u32, 0, input);
    }
}
