//! Calls on several requests at once.

use std::ffi::c_int;

use super::{Few, REQUESTS, Request, all_given, close, end, set_empty, set_ended, set_status, settle};
use crate::args::{put, slice};
use crate::constants::*;
use crate::error::{self, Class, Fail, Outcome};
use crate::net;

unsafe fn list(count: c_int, handles: *mut c_int) -> Outcome<Few<Option<Request>>> {
    // SAFETY: the caller's promise.
    all_given(unsafe { slice(handles, count)? })
}

unsafe fn status_at(statuses: *mut Status, at: usize) -> *mut Status {
    if statuses == STATUS_IGNORE || statuses.is_null() { STATUS_IGNORE } else { statuses.wrapping_add(at) }
}

/// Ends some requests. The error fields of the statuses are set only if a request has failed.
unsafe fn end_some(
    all: &[Option<Request>],
    places: impl ExactSizeIterator<Item = usize>,
    handles: *mut c_int,
    statuses: *mut Status,
) -> Outcome {
    let (mut codes, mut whose) = (Few::from_elem(SUCCESS, places.len()), None);
    let mut forgotten: Few<c_int> = Few::with_capacity(places.len());
    for (nth, at) in places.enumerate() {
        // SAFETY: the caller's promise: a handle at each of the places, and a status for each of them.
        unsafe {
            let status = status_at(statuses, nth);
            match &all[at] {
                None => set_empty(status),
                Some(request) => {
                    let (forget, outcome) = close(request, status);
                    if forget {
                        forgotten.push(std::mem::replace(&mut *handles.wrapping_add(at), REQUEST_NULL));
                    }
                    if let Err(failure) = outcome {
                        codes[nth] = error::encode(&failure);
                        whose = whose.or(failure.object);
                    }
                }
            }
        }
    }
    REQUESTS.remove_all(&forgotten);
    if codes.iter().all(|code| *code == SUCCESS) {
        return Ok(());
    }
    if statuses == STATUS_IGNORE || statuses.is_null() {
        let first = codes.iter().find(|code| **code != SUCCESS).copied().unwrap_or(SUCCESS);
        return Err(Fail { object: whose, ..Fail::code(first) });
    }
    for (nth, code) in codes.iter().enumerate() {
        // SAFETY: as above.
        unsafe { (*statuses.wrapping_add(nth)).error = *code };
    }
    Err(Fail { object: whose, ..Fail::new(Class::InStatus, "") })
}

fn all_over(all: &[Option<Request>]) -> bool {
    all.iter().flatten().all(|request| request.is_over())
}

pub unsafe fn waitall(count: c_int, handles: *mut c_int, statuses: *mut Status) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        let mut first = 0;
        let waited = net::wait_until_all(|| {
            while all
                .get(first)
                .is_some_and(|request| request.as_ref().is_none_or(|request| request.is_over()))
            {
                first += 1;
            }
            first == all.len()
        });
        settle(waited, all.iter().flatten())?;
        end_some(&all, 0..all.len(), handles, statuses)
    }
}

pub unsafe fn testall(count: c_int, handles: *mut c_int, flag: *mut c_int, statuses: *mut Status) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        if !all_over(&all) {
            settle(net::look(), all.iter().flatten())?;
        }
        let over = all_over(&all);
        put(flag, over.into())?;
        if over { end_some(&all, 0..all.len(), handles, statuses) } else { Ok(()) }
    }
}

/// Returns whether any request is active, and the places of the active requests that are complete.
fn active_and_over(all: &[Option<Request>]) -> (bool, Few<usize>) {
    let active = |at: &usize| all[*at].as_ref().is_some_and(Request::is_active);
    let over = |at: &usize| all[*at].as_ref().is_some_and(|request| request.is_over());
    ((0..all.len()).any(|at| active(&at)), (0..all.len()).filter(active).filter(over).collect())
}

fn active(all: &[Option<Request>]) -> impl Iterator<Item = &Request> + Clone {
    all.iter().flatten().filter(|request| request.is_active())
}

unsafe fn any(
    all: &[Option<Request>],
    handles: *mut c_int,
    index: *mut c_int,
    flag: *mut c_int,
    status: *mut Status,
) -> Outcome {
    let (some_active, over) = active_and_over(all);
    // SAFETY: the caller's promise.
    unsafe {
        put(flag, (!some_active || !over.is_empty()).into())?;
        match over.first() {
            Some(at) => {
                put(index, *at as c_int)?;
                let Some(request) = &all[*at] else { return Ok(()) };
                end(request, handles.wrapping_add(*at), status)
            }
            None => {
                if !some_active {
                    set_empty(status);
                }
                put(index, UNDEFINED)
            }
        }
    }
}

pub unsafe fn waitany(count: c_int, handles: *mut c_int, index: *mut c_int, status: *mut Status) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        let waited = net::wait_until(|| {
            let (some_active, over) = active_and_over(&all);
            !some_active || !over.is_empty()
        });
        settle(waited, active(&all).take(1))?;
        let mut flag = 0;
        any(&all, handles, index, &raw mut flag, status)
    }
}

pub unsafe fn testany(
    count: c_int,
    handles: *mut c_int,
    index: *mut c_int,
    flag: *mut c_int,
    status: *mut Status,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        if active_and_over(&all) == (true, Few::new()) {
            settle(net::look(), active(&all).take(1))?;
        }
        any(&all, handles, index, flag, status)
    }
}

unsafe fn some(
    all: &[Option<Request>],
    handles: *mut c_int,
    number: *mut c_int,
    indices: *mut c_int,
    statuses: *mut Status,
) -> Outcome {
    let (some_active, over) = active_and_over(all);
    // SAFETY: the caller's promise.
    unsafe {
        if !some_active {
            return put(number, UNDEFINED);
        }
        put(number, over.len() as c_int)?;
        for (nth, at) in over.iter().enumerate() {
            put(indices.wrapping_add(nth), *at as c_int)?;
        }
        end_some(all, over.into_iter(), handles, statuses)
    }
}

pub unsafe fn waitsome(
    count: c_int,
    handles: *mut c_int,
    number: *mut c_int,
    indices: *mut c_int,
    statuses: *mut Status,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        let waited = net::wait_until(|| {
            let (some_active, over) = active_and_over(&all);
            !some_active || !over.is_empty()
        });
        settle(waited, active(&all))?;
        some(&all, handles, number, indices, statuses)
    }
}

pub unsafe fn testsome(
    count: c_int,
    handles: *mut c_int,
    number: *mut c_int,
    indices: *mut c_int,
    statuses: *mut Status,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        if active_and_over(&all) == (true, Few::new()) {
            settle(net::look(), active(&all))?;
        }
        some(&all, handles, number, indices, statuses)
    }
}

pub unsafe fn request_get_status_all(
    count: c_int,
    handles: *mut c_int,
    flag: *mut c_int,
    statuses: *mut Status,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        if !all_over(&all) {
            net::look()?;
        }
        let over = all_over(&all);
        put(flag, over.into())?;
        for (at, request) in all.iter().enumerate().filter(|_| over) {
            let ended = request.as_ref().and_then(|request| request.ended());
            let status = ended.map_or(Status::EMPTY, |ended| ended.status);
            set_ended(status_at(statuses, at), request.as_ref(), status);
        }
    }
    Ok(())
}

pub unsafe fn request_get_status_any(
    count: c_int,
    handles: *mut c_int,
    index: *mut c_int,
    flag: *mut c_int,
    status: *mut Status,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        if active_and_over(&all) == (true, Few::new()) {
            net::look()?;
        }
        let (some_active, over) = active_and_over(&all);
        put(flag, (!some_active || !over.is_empty()).into())?;
        put(index, over.first().map_or(UNDEFINED, |at| *at as c_int))?;
        let ended = over.first().and_then(|at| all[*at].as_ref()?.ended());
        match ended {
            Some(ended) => set_status(status, ended.status),
            None if !some_active => set_empty(status),
            None => {}
        }
    }
    Ok(())
}

pub unsafe fn request_get_status_some(
    count: c_int,
    handles: *mut c_int,
    number: *mut c_int,
    indices: *mut c_int,
    statuses: *mut Status,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        let all = list(count, handles)?;
        if active_and_over(&all) == (true, Few::new()) {
            net::look()?;
        }
        let (some_active, over) = active_and_over(&all);
        put(number, if some_active { over.len() as c_int } else { UNDEFINED })?;
        for (nth, at) in over.iter().enumerate() {
            put(indices.wrapping_add(nth), *at as c_int)?;
            let ended = all[*at].as_ref().and_then(|request| request.ended());
            set_status(status_at(statuses, nth), ended.map_or(Status::EMPTY, |ended| ended.status));
        }
    }
    Ok(())
}
