use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::Unpoisoned;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap};

/// Maps memory, and touches it.
fn map(at: *mut u8, len: usize, flags: MapFlags) -> Result<*mut u8, rustix::io::Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the call maps new memory, and replaces none. These are `len` bytes that nobody else uses.
    unsafe {
        let memory = mmap_anonymous(at.cast(), len, access, MapFlags::PRIVATE | flags)?.cast::<u8>();
        memory.write_bytes(1, len);
        Ok(memory)
    }
}

/// Returns the right to use the process's own watcher: a child cannot have one if another thread held its lock when the
/// child was forked.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unpoisoned()
}

/// Runs a test in a child, which its alarm ends if it hangs. Returns whether the test passed.
fn passes_in_a_child(test: impl FnOnce() -> bool) -> bool {
    // SAFETY: the C library permits allocation and threads in a child. The child ends here, or by its alarm.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: the call takes no pointer.
            unsafe { libc::alarm(20) };
            let passed = test();
            // SAFETY: this ends the process.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        child => {
            assert!(child > 0, "cannot fork");
            let mut status = 0;
            // SAFETY: this waits for the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status == 0
        }
    }
}

/// Returns the watcher, or says why there is none.
fn or_skip<T>(watcher: Result<T, String>) -> Option<T> {
    watcher.inspect_err(|because| println!("skipped: {because}")).ok()
}

#[test]
fn unmapping_and_giving_back_are_told_and_other_memory_is_not() {
    let Some(watcher) = or_skip(MemoryWatcher::start()) else { return };
    let len = 64 * rustix::param::page_size();
    let map = || map(std::ptr::null_mut(), len, MapFlags::empty()).expect("memory");
    let (one, two, other) = (map(), map(), map());
    for memory in [one, two] {
        let watched = watcher.add(memory.addr(), memory.addr() + len);
        assert!(watched.is_some(), "{}", std::io::Error::last_os_error());
    }
    assert_eq!(watcher.changes(), Some(0));
    // SAFETY: the memory was mapped above, and is no longer used.
    unsafe { munmap(other.cast(), len).expect("munmap") };
    assert_eq!(watcher.changes(), Some(0), "memory that is not watched");
    // SAFETY: the memory was mapped above; nobody relies on its contents.
    unsafe { madvise(one.cast(), len, Advice::LinuxDontNeed).expect("madvise") };
    let mut told = Vec::new();
    let changes = watcher.changes().expect("followed");
    watcher.changed(0, changes, |start, end| told.push((start, end)));
    assert!(told.iter().any(|&(start, end)| start < one.addr() + len && one.addr() < end), "{told:x?}");
    // No thread waits for a page for ever, in either mode of the kernel. SAFETY: the memory is still mapped.
    assert_eq!(unsafe { one.read_volatile() }, 0);
    // SAFETY: the memory was mapped above, and is no longer used.
    unsafe { munmap(two.cast(), len).expect("munmap") };
    told.clear();
    let now = watcher.changes().expect("followed");
    assert!(now > changes);
    watcher.changed(changes, now, |start, end| told.push((start, end)));
    assert!(told.contains(&(two.addr(), two.addr() + len)), "{told:x?}");
    // SAFETY: the memory was mapped above, and is no longer used.
    unsafe { munmap(one.cast(), len).expect("munmap") };
}

#[test]
fn moved_memory_is_not_watched_at_its_new_place() {
    let Some(watcher) = or_skip(MemoryWatcher::start()) else { return };
    let len = 64 * rustix::param::page_size();
    let [from, to] = [(); 2].map(|()| map(std::ptr::null_mut(), len, MapFlags::empty()).expect("memory"));
    let watched = watcher.add(from.addr(), from.addr() + len).expect("watched");
    // SAFETY: both ranges were mapped above, and nobody else uses them.
    unsafe { mremap_fixed(from.cast(), len, len, MremapFlags::MAYMOVE, to.cast()).expect("mremap") };
    let moved = watcher.changes();
    assert!(moved > Some(0));
    // SAFETY: the memory is mapped; nobody relies on its contents.
    unsafe { madvise(to.cast(), len, Advice::LinuxDontNeed).expect("madvise") };
    assert_eq!(watcher.changes(), moved);
    watcher.remove(watched);
    // SAFETY: the memory is mapped, and is no longer used.
    unsafe { munmap(to.cast(), len).expect("munmap") };
}

/// The thread that unmaps the memory is delayed until its event is read; the thread that maps other memory there is
/// not. The watcher has no thread until the memory is mapped.
#[test]
fn a_change_counts_before_another_thread_can_have_the_addresses() {
    let Some(mut watcher) = or_skip(MemoryWatcher::new()) else { return };
    let len = 64 * rustix::param::page_size();
    // The kernel chooses no addresses so low by itself, and so does not give them to another test.
    let low = std::ptr::without_provenance_mut(1 << 40);
    let at = map(low, len, MapFlags::empty()).expect("memory").expose_provenance();
    assert!(watcher.add(at, at + len).is_some(), "{}", std::io::Error::last_os_error());
    assert!(!watcher.shared.is_changing());
    let memory = move || std::ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: the memory was mapped above, and is no longer used.
    let other = std::thread::spawn(move || unsafe { munmap(memory().cast(), len).expect("munmap") });
    let deadline = Instant::now() + Duration::from_secs(20);
    while map(memory(), len, MapFlags::FIXED_NOREPLACE).is_err() {
        assert!(Instant::now() < deadline, "the addresses are never free");
    }
    assert!(watcher.shared.is_changing());
    let (theirs, end) = (Arc::clone(&watcher.shared), Arc::clone(&watcher.stop));
    watcher.thread = Some(std::thread::spawn(move || theirs.listen(&end)));
    assert_eq!(watcher.changes(), Some(1));
    other.join().expect("it ends");
    // SAFETY: the memory was mapped above, and is no longer used.
    unsafe { munmap(memory().cast(), len).expect("munmap") };
}

/// The child inherits a watcher that is in use, and drops it.
#[test]
fn a_child_watches_its_own_memory() {
    let _alone = alone();
    let mut inherited = or_skip(MemoryWatcher::shared());
    if inherited.is_none() {
        return;
    }
    let sees_a_change = |watcher: &MemoryWatcher| {
        let len = 64 * rustix::param::page_size();
        let memory = map(std::ptr::null_mut(), len, MapFlags::empty()).expect("memory");
        let before = watcher.changes();
        let is_watched = watcher.add(memory.addr(), memory.addr() + len).is_some();
        // SAFETY: the memory was mapped above, and is no longer used.
        unsafe { munmap(memory.cast(), len).expect("munmap") };
        is_watched && watcher.changes() > before
    };
    assert!(passes_in_a_child(|| {
        let passed = MemoryWatcher::shared().is_ok_and(|watcher| sees_a_change(&watcher));
        drop(inherited.take());
        passed
    }));
    assert!(inherited.is_some_and(|watcher| sees_a_change(&watcher)), "the parent's is unaffected");
}

/// The child of the watcher's process lives on when the watcher ends with memory that is still watched.
#[test]
fn a_child_does_not_keep_its_parents_memory_watched() {
    let _alone = alone();
    if or_skip(MemoryWatcher::shared()).is_none() {
        return;
    }
    // In a process whose watcher no other test uses.
    assert!(passes_in_a_child(|| {
        let len = 64 * rustix::param::page_size();
        let memory = map(std::ptr::null_mut(), len, MapFlags::empty()).expect("memory");
        let watcher = MemoryWatcher::shared().expect("as in the parent");
        let is_watched = watcher.add(memory.addr(), memory.addr() + len).is_some();
        // SAFETY: the calls take no pointers. The child only waits for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(20);
                loop {
                    libc::pause();
                }
            }
        }
        drop(watcher);
        // SAFETY: the memory was mapped above, and is no longer used.
        unsafe { munmap(memory.cast(), len).expect("munmap") };
        // SAFETY: the call takes no pointer, and the process is the child that was just made.
        is_watched && unsafe { libc::kill(child, libc::SIGKILL) } == 0
    }));
}

#[test]
fn a_watcher_that_cannot_follow_changes_is_replaced() {
    let _alone = alone();
    if or_skip(MemoryWatcher::shared()).is_none() {
        return;
    }
    assert!(passes_in_a_child(|| {
        let lost = MemoryWatcher::shared().expect("as in the parent");
        lost.lost.store(true, Ordering::Relaxed);
        lost.changes().is_none() && MemoryWatcher::shared().is_ok_and(|next| next.changes() == Some(0))
    }));
}

#[test]
fn memory_is_watched_as_long_as_a_region_covers_it() {
    let Some(watcher) = or_skip(MemoryWatcher::start()) else { return };
    let page = rustix::param::page_size();
    let at = map(std::ptr::null_mut(), 8 * page, MapFlags::empty()).expect("memory").expose_provenance();
    let add = |from: usize, to: usize| watcher.add(at + from * page, at + to * page).expect("watched");
    let whole = [add(0, 8), add(0, 8)];
    add(2, 4);
    let gives_back = |number: usize| {
        let before = watcher.changes();
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(at + number * page);
        // SAFETY: the memory was mapped above; nobody relies on its contents.
        unsafe { madvise(memory.cast(), page, Advice::LinuxDontNeed).expect("madvise") };
        watcher.changes() > before
    };
    watcher.remove(whole[0]);
    assert!(gives_back(7));
    watcher.remove(whole[1]);
    assert_eq!([1, 2, 3, 4].map(gives_back), [false, true, true, false]);
    let memory = std::ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: the memory was mapped above, and is no longer used.
    unsafe { munmap(memory.cast(), 8 * page).expect("munmap") };
}

#[test]
fn a_part_of_a_huge_page_is_watched() {
    const SIZE: usize = 2 << 20;
    let Some(watcher) = or_skip(MemoryWatcher::start()) else { return };
    let memory = match map(std::ptr::null_mut(), 2 * SIZE, MapFlags::HUGETLB | MapFlags::HUGE_2MB) {
        Ok(memory) => memory,
        Err(error) => return println!("skipped: huge pages: {error}"),
    };
    let at = memory.expose_provenance();
    let watched = watcher.add(at + SIZE / 2, at + SIZE / 2 + 8192).expect("watched");
    assert_eq!(watched, (at, at + SIZE));
    // SAFETY: the memory was mapped above, and is no longer used.
    unsafe { munmap(memory.cast(), 2 * SIZE).expect("munmap") };
    assert!(watcher.changes() > Some(0));
    watcher.remove(watched);
}

/// A hole that is made in the file, or a shorter file, gives no event.
#[test]
fn shared_memory_is_not_watched() {
    let Some(watcher) = or_skip(MemoryWatcher::start()) else { return };
    let len = 64 * rustix::param::page_size();
    let file = rustix::fs::memfd_create("kolo-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, len as u64).expect("a length");
    let access = ProtFlags::READ | ProtFlags::WRITE;
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        // SAFETY: the call maps new memory, of which nobody else knows.
        let memory =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, &file, 0).expect("mmap") };
        assert_eq!(watcher.add(memory.addr(), memory.addr() + len), None, "{flags:?}");
        // SAFETY: the memory was mapped above, and is not used.
        unsafe { munmap(memory, len).expect("munmap") };
    }
}

#[test]
fn parts_that_others_cover_are_left_out() {
    assert_eq!(uncovered((10, 20), &[]), [(10, 20)]);
    assert_eq!(uncovered((10, 20), &[(0, 5), (5, 10), (20, 30)]), [(10, 20)]);
    assert_eq!(uncovered((10, 20), &[(0, 12), (11, 13), (15, 16), (18, 25)]), [(13, 15), (16, 18)]);
    assert_eq!(uncovered((10, 20), &[(0, 30), (12, 14)]), []);
}

/// The watcher's thread writes change 256 over change 0 before it counts it.
#[test]
fn the_entry_that_may_be_overwritten_is_not_trusted() {
    let last = LOG_LEN as u64;
    assert!(is_whole(0, 0) && is_whole(0, last - 1) && is_whole(7, last + 6));
    assert!(!is_whole(0, last) && !is_whole(0, last + 1) && !is_whole(7, last + 7));
}

#[test]
fn a_thread_that_waits_for_the_watcher_leaves_it_the_processor() {
    let Some(watcher) = or_skip(MemoryWatcher::start()) else { return };
    watcher.shared.busy.store(true, Ordering::SeqCst);
    let slept = std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let watcher = &watcher;
        scope.spawn(move || {
            tell.send(rustix::thread::gettid()).expect("it listens");
            watcher.changes()
        });
        let status = format!("/proc/self/task/{}/status", told.recv().expect("it tells").as_raw_nonzero());
        let sleeps = || -> u64 {
            let status = std::fs::read_to_string(&status).expect("it lives");
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.expect("a count").trim().parse().expect("a number")
        };
        let (first, deadline) = (sleeps(), Instant::now() + Duration::from_secs(20));
        let mut slept = false;
        while !slept && Instant::now() < deadline {
            slept = sleeps() > first + 2;
        }
        watcher.shared.busy.store(false, Ordering::SeqCst);
        slept
    });
    assert!(slept, "it only spins");
}
