//! Builds of our programs that do not depend on where the checkout, cargo's files and the results are.
//!
//! Invariant: paths that the compilers write into programs begin with `/vmlet` or `/cargo` on every machine; flags of
//! the caller's environment and settings do not apply.
//! Failure: names the program that has a path of this machine in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{run, workspace};

/// Where the checkout is for programs.
const CHECKOUT: &str = "/vmlet";
/// Where cargo's sources of crates are for programs.
const CARGO: &str = "/cargo";
/// Between the flags of `CARGO_ENCODED_RUSTFLAGS`.
const SEPARATOR: &str = "\u{1f}";

/// A folder of this machine, and its name in programs.
#[derive(Debug)]
struct Folder {
    here: PathBuf,
    named: &'static str,
}

/// Has a call of cargo build with these flags of the compiler, and those that make its result reproducible.
pub(crate) fn apply(cargo: &mut Command, flags: &[&str]) -> Result<()> {
    let folders = folders()?;
    let remapped = folders.iter().map(|folder| {
        let here = folder.here.display();
        format!("--remap-path-prefix={here}={}", folder.named)
    });
    let flags = flags.iter().map(|flag| (*flag).to_owned());
    let flags: Vec<_> = flags.chain(remapped).collect();
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join(SEPARATOR));
    // Crates with C code in them ask for its flags.
    let remapped = folders.iter().map(|folder| {
        let here = folder.here.display();
        format!("-ffile-prefix-map={here}={}", folder.named)
    });
    cargo.env("CFLAGS", remapped.collect::<Vec<_>>().join(" "));
    Ok(())
}

/// Fails if one of the programs has a path of this machine in it.
pub(crate) fn check(programs: &[PathBuf]) -> Result<()> {
    let folders = folders()?;
    for program in programs {
        let content = fs::read(program).with_context(|| format!("read {}", program.display()))?;
        let content = String::from_utf8_lossy(&content);
        // The checkout itself may be at the path that programs get for it.
        let others = folders
            .iter()
            .filter(|folder| folder.here != Path::new(folder.named));
        for folder in others {
            let here = format!("{}/", folder.here.display());
            ensure!(
                !content.contains(&here),
                "{} has paths in it that begin with {here}",
                program.display()
            );
        }
    }
    Ok(())
}

/// The later ones have precedence: a folder may be in another one.
fn folders() -> Result<Vec<Folder>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let default = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let home = home
        .or_else(default)
        .context("neither CARGO_HOME nor HOME is set")?;
    Ok(vec![
        Folder {
            here: sysroot()?,
            named: "/rustc",
        },
        Folder {
            here: home,
            named: CARGO,
        },
        Folder {
            here: workspace::root(),
            named: CHECKOUT,
        },
        Folder {
            here: workspace::target(),
            named: "/vmlet/target",
        },
    ])
}

/// The folder of the compiler, which has sources of the standard library if a developer wanted them.
fn sysroot() -> Result<PathBuf> {
    let mut rustc = run::command("rustc");
    let printed = run::output(
        rustc
            .args(["--print", "sysroot"])
            .current_dir(workspace::root()),
    )?;
    Ok(PathBuf::from(printed.trim()))
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[test]
    fn a_program_with_a_path_of_this_machine_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let [plain, local] = ["plain", "local"].map(|name| dir.path().join(name));
        fs::write(&plain, b"\x7fELF\xff\0/vmlet/src/main.rs").unwrap();
        let source = workspace::root().join("src/main.rs");
        fs::write(&local, format!("\u{7f}ELF\0{}\0", source.display())).unwrap();
        check(slice::from_ref(&plain)).unwrap();
        let error = check(&[plain, local.clone()]).unwrap_err().to_string();
        assert!(error.contains(&local.display().to_string()), "{error}");
    }

    #[test]
    fn the_flags_of_a_caller_come_with_the_names_of_all_folders() {
        let mut cargo = Command::new("cargo");
        apply(&mut cargo, &["-Ctarget-feature=+crt-static"]).unwrap();
        let variable = |name: &str| {
            let mut all = cargo.get_envs();
            let found = all.find(|(key, _)| *key == name);
            found.unwrap().1.unwrap().to_string_lossy().into_owned()
        };
        let flags = variable("CARGO_ENCODED_RUSTFLAGS");
        let flags: Vec<_> = flags.split(SEPARATOR).collect();
        assert_eq!(flags[0], "-Ctarget-feature=+crt-static");
        let root = workspace::root().display().to_string();
        assert!(flags.contains(&format!("--remap-path-prefix={root}=/vmlet").as_str()));
        let expected = format!("-ffile-prefix-map={root}=/vmlet");
        assert!(variable("CFLAGS").split(' ').any(|flag| flag == expected));
    }
}
