//! Handles of objects that the program makes: the kind of the object in the upper bits, a place in a table in the lower ones.

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

/// Bits of a handle that name the place.
const PLACE_BITS: u32 = 18;
/// Bits above them that count how often the place has been given away, so that a handle of a freed object is noticed.
const AGE_BITS: u32 = 8;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;
const AGE_MASK: u32 = (1 << AGE_BITS) - 1;

/// An object that a call holds. A predefined one lives as long as the process, so it is not counted.
#[derive(Debug)]
pub enum Held<T: 'static> {
    /// Predefined.
    Predefined(&'static Arc<T>),
    /// The program's.
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
    /// A table of a kind: bits 26 to 29 of its handles.
    #[must_use]
    pub const fn new(kind: u32) -> Self {
        let places = Places { all: Vec::new(), free: Vec::new() };
        Self { kind: 0x8000_0000 | kind << 26, places: RwLock::new(places) }
    }

    /// Puts an object in.
    pub fn insert(&self, object: T) -> c_int {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let at = places.free.pop().unwrap_or_else(|| {
            // The first places of a kind are left out: predefined objects of the MPICH ABI are numbered so.
            places.all.push(Place { age: 1, object: None });
            places.all.len() as u32 - 1
        });
        let place = &mut places.all[at as usize];
        place.object = Some(object);
        (self.kind | place.age << PLACE_BITS | at) as c_int
    }

    fn split(&self, handle: c_int) -> Option<(usize, u32)> {
        let handle = handle as u32;
        let kind = handle & !(PLACE_MASK | AGE_MASK << PLACE_BITS);
        (kind == self.kind).then_some(((handle & PLACE_MASK) as usize, handle >> PLACE_BITS & AGE_MASK))
    }

    /// The object of a handle.
    pub fn get(&self, handle: c_int) -> Option<T> {
        let (at, age) = self.split(handle)?;
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let place = places.all.get(at).filter(|place| place.age == age)?;
        place.object.clone()
    }

    /// The objects of several handles.
    pub fn get_all<R>(&self, handles: &[c_int], each: impl Fn(c_int, Option<T>) -> R) -> Vec<R> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let object = |handle: c_int| {
            let (at, age) = self.split(handle)?;
            places.all.get(at).filter(|place| place.age == age)?.object.clone()
        };
        handles.iter().map(|handle| each(*handle, object(*handle))).collect()
    }

    /// Takes several objects out.
    pub fn remove_all(&self, handles: &[c_int]) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let removed: Vec<Option<T>> = handles.iter().map(|handle| self.take(&mut places, *handle)).collect();
        // Dropped values may come back here.
        drop(places);
        drop(removed);
    }

    fn take(&self, places: &mut Places<T>, handle: c_int) -> Option<T> {
        let (at, age) = self.split(handle)?;
        let place = places.all.get_mut(at).filter(|place| place.age == age)?;
        let object = place.object.take()?;
        place.age = (place.age % AGE_MASK) + 1;
        places.free.push(at as u32);
        Some(object)
    }

    /// Takes an object out.
    pub fn remove(&self, handle: c_int) -> Option<T> {
        self.take(&mut self.places.write().unwrap_or_else(PoisonError::into_inner), handle)
    }

    /// All objects.
    pub fn all(&self) -> Vec<T> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.all.iter().filter_map(|place| place.object.clone()).collect()
    }
}
