//! Handles of objects that the program makes: the upper bits hold the kind of the object, the lower bits a place in a table.

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::{Arc, RwLock};

use kolo_transport::Unpoisoned;
use smallvec::SmallVec;

/// A list with one entry for each handle of a call. Most calls name a few.
pub type Few<T> = SmallVec<[T; 4]>;

/// A division of the lower bits of a handle.
struct Form {
    /// The bit by which the form is known.
    mark: u32,
    /// Bits that select the place.
    place_bits: u32,
    /// The bits above count how often the place has been used, so that the handle of a freed object is detected.
    age_bits: u32,
}

const NEAR: Form = Form { mark: 0, place_bits: 18, age_bits: 8 };
/// The form for places that [`NEAR`] cannot hold.
const FAR: Form = Form { mark: 1 << 30, place_bits: 24, age_bits: 2 };

impl Form {
    const fn of_place(at: u32) -> Self {
        if at >> NEAR.place_bits == 0 { NEAR } else { FAR }
    }

    const fn of_handle(handle: u32) -> Self {
        if handle & FAR.mark == 0 { NEAR } else { FAR }
    }

    const fn place_mask(&self) -> u32 {
        (1 << self.place_bits) - 1
    }

    const fn age_mask(&self) -> u32 {
        (1 << self.age_bits) - 1
    }
}

/// An object that a call holds. A predefined one lives as long as the process, so it is not counted.
#[derive(Debug)]
pub enum Held<T: 'static> {
    /// A predefined object.
    Predefined(&'static Arc<T>),
    /// An object that the program has made.
    Counted(Arc<T>),
}

impl<T> Clone for Held<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Predefined(object) => Self::Predefined(object),
            Self::Counted(object) => Self::Counted(Arc::clone(object)),
        }
    }
}

impl<T> From<&Self> for Held<T> {
    fn from(object: &Self) -> Self {
        object.clone()
    }
}

impl<T> From<&Arc<T>> for Held<T> {
    fn from(object: &Arc<T>) -> Self {
        Self::Counted(Arc::clone(object))
    }
}

impl<T> Deref for Held<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        match self {
            Self::Predefined(object) => object,
            Self::Counted(object) => object,
        }
    }
}

struct Place<T> {
    age: u32,
    object: Option<T>,
}

/// The objects of one kind.
pub struct Table<T> {
    kind: u32,
    places: RwLock<Places<T>>,
}

struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T: Clone> Table<T> {
    /// Makes the table of a kind; the kind is in bits 26 to 29 of its handles.
    #[must_use]
    pub const fn new(kind: u32) -> Self {
        let places = Places { all: Vec::new(), free: Vec::new() };
        Self { kind: 0x8000_0000 | kind << 26, places: RwLock::new(places) }
    }

    /// Inserts an object, and returns its handle.
    ///
    /// # Panics
    /// If there is no handle for another object. The front ends make that an error of the call.
    pub fn insert(&self, object: T) -> c_int {
        let mut places = self.places.write().unpoisoned();
        let at = places.free.pop().unwrap_or_else(|| {
            // Ages begin at 1, so that no handle equals that of a predefined object of the MPICH ABI.
            let at = places.all.len() as u32;
            assert!(at <= FAR.place_mask(), "there are {at} objects of one kind, and handles for no more");
            places.all.push(Place { age: 1, object: None });
            at
        });
        let place = &mut places.all[at as usize];
        place.object = Some(object);
        let form = Form::of_place(at);
        (self.kind | form.mark | place.age << form.place_bits | at) as c_int
    }

    fn split(&self, handle: c_int) -> Option<(usize, u32)> {
        let handle = handle as u32;
        let form = Form::of_handle(handle);
        let (at, age) = (handle & form.place_mask(), handle >> form.place_bits & form.age_mask());
        let rest = form.mark | age << form.place_bits | at;
        (handle ^ rest == self.kind).then_some((at as usize, age))
    }

    /// Returns the object of a handle.
    pub fn get(&self, handle: c_int) -> Option<T> {
        let (at, age) = self.split(handle)?;
        let places = self.places.read().unpoisoned();
        let place = places.all.get(at).filter(|place| place.age == age)?;
        place.object.clone()
    }

    /// Calls `each` for several handles with their objects.
    ///
    /// # Errors
    /// The first one of `each`.
    pub fn get_all<R, E>(
        &self,
        handles: &[c_int],
        each: impl Fn(c_int, Option<T>) -> Result<R, E>,
    ) -> Result<Few<R>, E> {
        let places = self.places.read().unpoisoned();
        let object = |handle: c_int| {
            let (at, age) = self.split(handle)?;
            places.all.get(at).filter(|place| place.age == age)?.object.clone()
        };
        let mut all = Few::with_capacity(handles.len());
        for handle in handles {
            all.push(each(*handle, object(*handle))?);
        }
        Ok(all)
    }

    /// Removes several objects.
    pub fn remove_all(&self, handles: &[c_int]) {
        let mut places = self.places.write().unpoisoned();
        let removed: Few<Option<T>> = handles.iter().map(|handle| self.take(&mut places, *handle)).collect();
        // Dropping the values may call this table again, so the lock is released first.
        drop(places);
        drop(removed);
    }

    fn take(&self, places: &mut Places<T>, handle: c_int) -> Option<T> {
        let (at, age) = self.split(handle)?;
        let place = places.all.get_mut(at).filter(|place| place.age == age)?;
        let object = place.object.take()?;
        place.age = (place.age % Form::of_place(at as u32).age_mask()) + 1;
        places.free.push(at as u32);
        Some(object)
    }

    /// Removes an object.
    pub fn remove(&self, handle: c_int) -> Option<T> {
        self.take(&mut self.places.write().unpoisoned(), handle)
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<T> {
        let places = self.places.read().unpoisoned();
        places.all.iter().filter_map(|place| place.object.clone()).collect()
    }
}
