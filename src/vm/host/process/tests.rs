//! Processes in a directory that looks like `/proc`, and our own.
//!
//! Invariant: what a process can choose, such as its name, changes no figure.
//! Failure: proptest shows the smallest file that breaks it.

use proptest::prelude::*;

use super::*;

impl Processes {
    fn locate(&self, wanted: Emulator) -> Option<i32> {
        self.find(&[wanted]).remove(&wanted.domain)
    }
}

fn emulator(number: u128) -> Emulator {
    Emulator {
        domain: Uuid::from_u128(number),
        user: 7,
    }
}

/// Makes a process with this command line, which runs as user 7.
pub(in crate::vm) fn plant(proc: &Path, pid: i32, command: &str, started: u64) {
    let dir = proc.join(pid.to_string());
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("cmdline"), command).unwrap();
    let stat =
        format!("{pid} (qemu) x) S 1 2 3 4 5 6 70 8 9 10 11 12 13 14 15 16 17 18 {started} 1\n");
    std::fs::write(dir.join("stat"), stat).unwrap();
    std::fs::write(
        dir.join("status"),
        "Name:\tx\nUid:\t1\t7\t1\t1\nVmRSS:\t     12 kB\nVmSwap: 3 kB\n",
    )
    .unwrap();
}

#[test]
fn an_emulator_is_found_by_its_uuid_and_forgotten_when_its_number_is_used_again() {
    let scratch = tempfile::tempdir().unwrap();
    let one = emulator(1);
    let two = emulator(2);
    let command = format!("qemu\0-uuid\0{}\0-no", one.domain);
    plant(scratch.path(), 10, &command, 500);
    plant(scratch.path(), 11, "qemu\0-uuid", 500);
    plant(scratch.path(), 12, "sh\0-uuid\0nothing\0", 500);
    std::fs::create_dir(scratch.path().join("self")).unwrap();
    let processes = Processes::below(scratch.path());
    assert_eq!(processes.find(&[one, two]), [(one.domain, 10)].into());
    let other = Emulator { user: 8, ..one };
    let fresh = Processes::below(scratch.path());
    assert_eq!(
        (fresh.find(&[other]), fresh.locate(other)),
        (HashMap::new(), None)
    );
    plant(scratch.path(), 10, "another program", 501);
    assert_eq!(processes.find(&[one, two]), HashMap::new());
    plant(
        scratch.path(),
        13,
        &format!("q\0-uuid\0{}\0", one.domain),
        600,
    );
    assert_eq!(processes.find(&[one]), [(one.domain, 13)].into());
    assert_eq!(processes.find(&[two]), HashMap::new());
}

#[test]
fn only_wanted_emulators_stay_known() {
    let scratch = tempfile::tempdir().unwrap();
    let one = emulator(1);
    let two = emulator(2);
    for (pid, machine) in [(10, one), (11, two)] {
        plant(
            scratch.path(),
            pid,
            &format!("q\0-uuid\0{}\0", machine.domain),
            5,
        );
    }
    let processes = Processes::below(scratch.path());
    assert_eq!(processes.find(&[one, two]).len(), 2);
    processes.keep(&[two]);
    assert!(!processes.has_found(one.domain) && processes.has_found(two.domain));
    assert_eq!(processes.find_again(one.domain), None);
    assert_eq!(processes.find_again(two.domain), Some(11));
}

#[test]
fn a_process_that_does_not_show_its_command_line_hides_no_other() {
    let scratch = tempfile::tempdir().unwrap();
    let known = emulator(1);
    let hidden = emulator(2);
    plant(
        scratch.path(),
        10,
        &format!("q\0-uuid\0{}\0", known.domain),
        5,
    );
    let processes = Processes::below(scratch.path());
    assert_eq!(processes.locate(known), Some(10));
    plant(scratch.path(), 11, "", 5);
    let hung = scratch.path().join("11/cmdline");
    std::fs::remove_file(&hung).unwrap();
    nix::unistd::mkfifo(&hung, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::thread::scope(|scope| {
        // It has no other process to look at, so that it hangs; the others go on.
        let first = scope.spawn(|| processes.locate(hidden));
        while !processes.reader.is_taken(&11) && !first.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(
            processes.find(&[known, hidden]),
            [(known.domain, 10)].into()
        );
        plant(
            scratch.path(),
            12,
            &format!("q\0-uuid\0{}\0", hidden.domain),
            5,
        );
        assert_eq!(processes.locate(hidden), Some(12));
        assert!(!first.is_finished());
        drop(std::fs::OpenOptions::new().write(true).open(&hung).unwrap());
    });
}

#[test]
fn processes_in_the_cgroup_of_our_own_pod_end_with_it() {
    let scratch = tempfile::tempdir().unwrap();
    let tell = |process: &str, cgroup: &str| {
        let dir = scratch.path().join(process);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    };
    tell("10", "/kubepods/podvm/vmlet");
    tell("11", "/kubepods/podours/libvirt");
    let processes = Processes::below(scratch.path());
    let bound = || [10, 11, 12].map(|pid| processes.is_bound(pid));
    tell("self", "/system.slice/vmlet.service");
    assert_eq!(bound(), [false; 3]);
    tell("self", "/kubepods/podours/daemon");
    assert_eq!(bound(), [false, true, false]);
}

#[test]
fn what_a_process_has_in_memory_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    plant(scratch.path(), 10, "", 5);
    let resident = Processes::below(scratch.path()).resident(10).unwrap();
    assert_eq!((resident.bytes, resident.swapped), (12 * 1024, 3 * 1024));
    assert_eq!((resident.faults, resident.major_faults), (70, 9));
    assert_eq!(resident.cpu_nanoseconds, (11 + 12) * TICK);
    let own = Processes::default().resident(std::process::id().cast_signed());
    assert!(own.unwrap().bytes > 100_000);
    assert_eq!(Processes::below("/nonexistent").resident(1), None);
}

proptest! {
    #[test]
    fn the_name_of_a_process_changes_no_figure_of_it(
        name in "[ -~\n]{0,15}",
        figures in prop::collection::vec(any::<u32>(), 20),
        cut in any::<prop::sample::Index>(),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        plant(scratch.path(), 10, "", 5);
        let words: Vec<_> = figures.iter().map(u32::to_string).collect();
        let stat = format!("10 ({name}) S {}\n", words.join(" "));
        let file = scratch.path().join("10/stat");
        std::fs::write(&file, &stat).unwrap();
        let processes = Processes::below(scratch.path());
        // The third field is the state.
        prop_assert_eq!(processes.stat(10, 4), Some(figures[0].into()));
        prop_assert_eq!(processes.started(10), Some(figures[18].into()));
        let resident = processes.resident(10).unwrap();
        prop_assert_eq!(resident.faults, u64::from(figures[6]));
        // A file that ends early has fewer figures, and no others.
        std::fs::write(&file, &stat.as_bytes()[..cut.index(stat.len())]).unwrap();
        let started = processes.started(10);
        prop_assert!(started.is_none_or(|cut| words[18].starts_with(&cut.to_string())));
    }

    #[test]
    fn any_status_has_sizes_or_none(text in "(VmRSS:|VmSwap:)?[\t 0-9]{0,24}( kB)?\n?[ -~\n]{0,20}") {
        if let Some(bytes) = detail::size(&text, "VmRSS:") {
            prop_assert!(text.contains(&(bytes / 1024).to_string()));
        }
    }
}
