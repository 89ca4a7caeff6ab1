//! Staging, pipelined: while one piece is copied between GPU and host, the one before is on the network.

/// Copies that go on by themselves, one after the other, and a network that does so too.
pub trait Copier {
    /// What goes wrong.
    type Error;

    /// Starts what fills a place of the staging: a copy from the GPU when sending, a receive when receiving.
    ///
    /// # Errors
    /// If it cannot start.
    fn fill(&mut self, place: usize, offset: usize, len: usize) -> Result<(), Self::Error>;

    /// Waits until that place is filled.
    ///
    /// # Errors
    /// If it failed.
    fn filled(&mut self, place: usize) -> Result<(), Self::Error>;

    /// Starts what empties it: a send, or a copy to the GPU.
    ///
    /// # Errors
    /// If it cannot start.
    fn empty(&mut self, place: usize, offset: usize, len: usize) -> Result<(), Self::Error>;

    /// Waits until that place is empty.
    ///
    /// # Errors
    /// If it failed.
    fn emptied(&mut self, place: usize) -> Result<(), Self::Error>;
}

/// Moves `len` bytes through `places` places of `piece` bytes each. Piece `i` goes through place `i % places`; it is
/// filled once the piece before it there has left, so up to `places` are under way, and pieces are emptied in order.
/// At most `places` are under way when an error comes back; the caller waits for, or gives up, those.
///
/// # Errors
/// The first that the copier gives.
///
/// # Panics
/// If there is no place, or no room in it.
pub fn stage<C: Copier>(len: usize, piece: usize, places: usize, copier: &mut C) -> Result<(), C::Error> {
    assert!(piece > 0 && places > 0, "{places} places of {piece} bytes");
    let count = len.div_ceil(piece);
    let bounds = |at: usize| (at * piece, piece.min(len - at * piece));
    for at in 0..count.min(places) {
        let (offset, bytes) = bounds(at);
        copier.fill(at, offset, bytes)?;
    }
    // A place is filled anew only when the one behind it is on its way: the network is never without work for it.
    let lag = usize::from(places > 1);
    for at in 0..count {
        let (offset, bytes) = bounds(at);
        copier.filled(at % places)?;
        copier.empty(at % places, offset, bytes)?;
        let Some(free) = at.checked_sub(lag).filter(|free| free + places < count) else { continue };
        copier.emptied(free % places)?;
        let (offset, bytes) = bounds(free + places);
        copier.fill(free % places, offset, bytes)?;
    }
    (count.saturating_sub(places)..count).try_for_each(|at| copier.emptied(at % places))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what is done, checks that no place is used for two things at once, and fails at a given step.
    #[derive(Default)]
    struct Notes {
        full: Vec<Option<(usize, usize)>>,
        leaving: Vec<bool>,
        sent: Vec<(usize, usize)>,
        most: usize,
        steps: usize,
        fails_at: Option<usize>,
    }

    impl Notes {
        fn new(places: usize, fails_at: Option<usize>) -> Self {
            Self { full: vec![None; places], leaving: vec![false; places], fails_at, ..Self::default() }
        }
        fn step(&mut self) -> Result<(), usize> {
            self.steps += 1;
            if self.fails_at == Some(self.steps) { Err(self.steps) } else { Ok(()) }
        }
    }

    impl Copier for Notes {
        type Error = usize;
        fn fill(&mut self, place: usize, offset: usize, len: usize) -> Result<(), usize> {
            assert!(self.full[place].replace((offset, len)).is_none(), "place {place} is in use");
            self.most = self.most.max(self.full.iter().flatten().count());
            self.step()
        }
        fn filled(&mut self, place: usize) -> Result<(), usize> {
            assert!(self.full[place].is_some() && !self.leaving[place]);
            self.step()
        }
        fn empty(&mut self, place: usize, offset: usize, len: usize) -> Result<(), usize> {
            assert_eq!(self.full[place], Some((offset, len)));
            self.leaving[place] = true;
            self.sent.push((offset, len));
            self.step()
        }
        fn emptied(&mut self, place: usize) -> Result<(), usize> {
            assert!(std::mem::take(&mut self.leaving[place]), "place {place} is not on its way");
            self.full[place] = None;
            self.step()
        }
    }

    #[test]
    fn every_byte_goes_once_in_order_and_all_places_are_used() {
        for places in 1..5 {
            for len in [0, 1, 9, 10, 11, 20, 35, 100] {
                let mut notes = Notes::new(places, None);
                stage(len, 10, places, &mut notes).expect("no step fails");
                let mut end = 0;
                for (offset, bytes) in notes.sent {
                    assert_eq!(offset, end);
                    end += bytes;
                }
                assert_eq!(end, len);
                assert!(notes.full.iter().all(Option::is_none), "nothing is under way at the end");
                assert_eq!(notes.most, places.min(len.div_ceil(10)), "{len} bytes, {places} places");
            }
        }
    }

    #[test]
    fn the_first_error_ends_it() {
        for step in 1..=20 {
            let mut notes = Notes::new(2, Some(step));
            assert_eq!(stage(50, 10, 2, &mut notes), Err(step));
            assert_eq!(notes.steps, step);
        }
        assert_eq!(stage(50, 10, 2, &mut Notes::new(2, Some(21))), Ok(()), "5 pieces, 4 steps each");
    }
}
