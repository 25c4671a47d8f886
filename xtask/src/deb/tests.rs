//! Packages of programs that do nothing, read by dpkg's own tools.
//!
//! Invariant: contents, owners and settings are those that dpkg sees.
//! Failure: names the file or the package.

use std::collections::BTreeSet;
use std::process::Command;

use super::*;

const ALL: [&Package; 4] = [&VMLET, &CRIPROXY, &VMLETCTL, &GUEST];

/// Programs that `strip` reads, whatever they do.
fn programs() -> tempfile::TempDir {
    let built = tempfile::tempdir().unwrap();
    let programs = ALL.iter().flat_map(|package| package.programs);
    let programs = programs.map(|(program, _)| *program);
    for program in programs.chain(["vmlet-guest"]) {
        fs::copy("/bin/true", built.path().join(program)).unwrap();
    }
    built
}

fn build(package: &Package, version: &str, built: &Path, folder: &Path) -> Result<PathBuf> {
    let agent = built.join("vmlet-guest");
    let built = Built {
        programs: package.has_programs().then_some(built),
        agent: package.has_agent().then_some(&agent),
    };
    super::build(package, version, built, folder)
}

fn dpkg(arguments: &[&str], package: &Path) -> String {
    let mut command = Command::new("dpkg-deb");
    let output = command.args(arguments).arg(package).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_package_has_its_files_as_root_s_and_its_settings_as_the_administrator_s() {
    let built = programs();
    let folder = tempfile::tempdir().unwrap();
    let package = build(&VMLET, "0.2.0~x", built.path(), folder.path()).unwrap();
    let contents = dpkg(&["--contents"], &package);
    for (file, mode) in [
        ("./usr/bin/vmlet", "-rwxr-xr-x root/root"),
        ("./usr/libexec/vmlet/libvirtd", "-rwxr-xr-x root/root"),
        // The daemon puts it on the seed images of guests.
        ("./usr/libexec/vmlet/vmlet-guest", "-rwxr-xr-x root/root"),
        ("./etc/vmlet/vmlet.toml", "-rw-r--r-- root/root"),
        ("./lib/systemd/system/vmlet.service", "-rw-r--r-- root/root"),
    ] {
        let mut lines = contents.lines();
        let line = lines.find(|line| line.ends_with(file)).expect(file);
        assert!(line.starts_with(mode), "{line}");
    }
    let version = dpkg(&["--field"], &package);
    assert!(version.contains("\nVersion: 0.2.0~x\n"), "{version}");
    let settings = dpkg(&["--info"], &package);
    assert!(settings.contains("conffiles"), "{settings}");
    let depends = dpkg(&["--field"], &package);
    let line = depends.lines().find(|line| line.starts_with("Depends: "));
    let line = line.unwrap();
    assert!(
        line.contains("libvirt0 (>= ") && line.contains("qemu-system-x86"),
        "{line}"
    );
    assert!(depends.contains("\nRecommends: ovmf\n"), "{depends}");
    assert!(!folder.path().join("vmlet").exists(), "the tree stays");
}

#[test]
fn the_same_inputs_give_the_same_bytes_and_packages_share_no_file() {
    let built = programs();
    let mut places = BTreeSet::new();
    for package in ALL {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = folders.each_ref().map(|folder| {
            let file = build(package, "0.2.0", built.path(), folder.path()).unwrap();
            fs::read(file).unwrap()
        });
        assert!(first == second, "{} differs", package.name);
        let programs = package.programs.iter().map(|(_, place)| *place);
        let files = package.files.iter().map(|(_, place, _)| *place);
        for place in programs.chain(files).chain(package.agent) {
            assert!(places.insert(place), "two packages have {place}");
        }
    }
}

/// A unit starts what is in a package at the place that it names.
#[test]
fn every_unit_starts_a_program_of_its_package() {
    for package in ALL {
        for (file, place, _) in package.files {
            if !place.starts_with("lib/systemd/") {
                continue;
            }
            let unit = fs::read_to_string(source(file)).unwrap();
            let line = unit
                .lines()
                .find_map(|line| line.strip_prefix("ExecStart="));
            let program = line.unwrap().split(' ').next().unwrap();
            let programs = package.programs.iter().map(|(_, place)| *place);
            let files = package.files.iter().map(|(_, place, _)| *place);
            let has = programs
                .chain(files)
                .chain(package.agent)
                .any(|place| program == format!("/{place}"));
            assert!(has, "{file}: {program}");
        }
    }
}

#[test]
fn the_shell_understands_the_scripts_of_packages() {
    for entry in fs::read_dir(source("deploy/deb")).unwrap() {
        let script = entry.unwrap().path();
        let status = Command::new("sh").arg("-n").arg(&script).status().unwrap();
        assert!(status.success(), "{}", script.display());
        let name = script.file_stem().unwrap().to_string_lossy();
        assert!(ALL.iter().any(|package| *package.name == *name), "{name}");
    }
}
