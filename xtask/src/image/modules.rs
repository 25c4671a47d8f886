//! Picks kernel modules with everything they depend on, in the order in which they must be
//! inserted.
//!
//! Invariant: a module comes after all modules it depends on, and only once.
//! Failure: a module that is neither in the package nor built into the kernel is named.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::kernel::Flavour;
use crate::run;

/// What the guest's drivers need; the console and the network first.
const WANTED: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "virtio_blk",
    "virtio_console",
    "virtio_mem",
    // For a process that makes one, when its capabilities allow that.
    "bridge",
    "button",
    "evdev",
    "nls_cp437",
    "nls_ascii",
    "vfat",
];

/// What only a guest with a seed disk needs.
const SEED: &[&str] = &["isofs"];

/// What only a guest that UEFI booted needs.
const UEFI: &[&str] = &["efivarfs"];

/// What only a guest with shares needs.
const SHARES: &[&str] = &["virtiofs"];

/// The same by 9p, which kernels for virtual machines lack.
const NINE_P: &[&str] = &["9pnet_virtio", "9p"];

/// The modules of an image by their use, in the order in which they must be inserted.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// What every guest inserts.
    pub(crate) always: Vec<String>,
    /// What a guest with a seed disk needs.
    pub(crate) seed: Vec<String>,
    /// What a guest that UEFI booted needs.
    pub(crate) uefi: Vec<String>,
    /// What a guest with shares needs.
    pub(crate) shares: Vec<String>,
}

/// The modules of one kernel package.
#[derive(Debug)]
pub(crate) struct Modules {
    files: BTreeMap<String, PathBuf>,
    builtin: String,
}

impl Modules {
    /// Reads the names of all modules below `folder`.
    pub(crate) fn scan(folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        walk(&folder.join("kernel"), &mut files)?;
        // Absent in some packages; then every wanted module must be a file.
        let builtin = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        Ok(Self { files, builtin })
    }

    /// Copies the wanted modules, uncompressed, into `target`; returns their file names.
    pub(crate) fn install(&self, target: &Path, flavour: Flavour) -> Result<Order> {
        let shares = match flavour {
            Flavour::Cloud => SHARES.to_vec(),
            Flavour::Generic => [SHARES, NINE_P].concat(),
        };
        let mut order = Vec::new();
        let mut lengths = Vec::new();
        for group in [WANTED, SEED, UEFI, &shares] {
            for name in group {
                self.insert(name, target, &mut order)?;
            }
            lengths.push(order.len());
        }
        for file in &order {
            strip(&target.join(file))?;
        }
        let shares = order.split_off(lengths[2]);
        let uefi = order.split_off(lengths[1]);
        let seed = order.split_off(lengths[0]);
        Ok(Order {
            always: order,
            seed,
            uefi,
            shares,
        })
    }

    fn insert(&self, name: &str, target: &Path, order: &mut Vec<String>) -> Result<()> {
        let file = format!("{name}.ko");
        if order.contains(&file) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            if is_builtin(&self.builtin, name) {
                return Ok(());
            }
            bail!("the kernel package has no module {name}");
        };
        let content = read(path)?;
        for dependency in depends(&content) {
            self.insert(&dependency, target, order)?;
        }
        fs::write(target.join(&file), content).with_context(|| format!("write {file}"))?;
        order.push(file);
        Ok(())
    }
}

/// Takes out of a module what costs time at its insertion and serves nothing here: the types for
/// BPF, and the signature, which the kernel verifies when there is one.
fn strip(module: &Path) -> Result<()> {
    let mut objcopy = run::command("objcopy");
    objcopy.args(["--strip-debug", "--remove-section=.BTF"]);
    run::output(objcopy.arg(module)).map(drop)
}

fn walk(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else if let Some(name) = path
            .file_name()
            .and_then(|name| module_name(&name.to_string_lossy()))
        {
            files.insert(name, path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let decompressor = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("read {}", path.display())),
    };
    let output = run::capture(run::command(decompressor).arg("-dc").arg(path))?;
    if !output.status.success() {
        bail!("{decompressor} cannot unpack {}", path.display());
    }
    Ok(output.stdout)
}

/// The kernel's spelling of the module in this file, which may be compressed.
fn module_name(file: &str) -> Option<String> {
    let (name, rest) = file.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".zst" | ".gz").then(|| name.replace('-', "_"))
}

/// The names in a module's own `depends=` record.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[start + KEY.len()..]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    let value = String::from_utf8_lossy(value);
    value
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

fn is_builtin(list: &str, name: &str) -> bool {
    list.lines()
        .filter_map(|line| line.rsplit('/').next())
        .filter_map(module_name)
        .any(|built| built == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(modules: &[(&str, &str)]) -> (tempfile::TempDir, Modules) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kernel/drivers")).unwrap();
        for (file, record) in modules {
            fs::write(dir.path().join("kernel/drivers").join(file), record).unwrap();
        }
        fs::write(
            dir.path().join("modules.builtin"),
            "kernel/fs/fat/vfat.ko\nkernel/a/nls-ascii.ko\n",
        )
        .unwrap();
        let modules = Modules::scan(dir.path()).unwrap();
        (dir, modules)
    }

    #[test]
    fn a_module_comes_after_what_it_depends_on_and_only_once() {
        let (dir, modules) = package(&[
            ("b.ko", "\0depends=a,c-d\0"),
            ("a.ko", "\0license=GPL\0depends=c_d\0"),
            ("c-d.ko", "\0depends=\0"),
        ]);
        let mut order = Vec::new();
        modules.insert("b", dir.path(), &mut order).unwrap();
        modules.insert("a", dir.path(), &mut order).unwrap();
        assert_eq!(order, ["c_d.ko", "a.ko", "b.ko"]);
    }

    #[test]
    fn a_module_inside_the_kernel_needs_no_file_and_an_unknown_one_is_named() {
        let (dir, modules) = package(&[]);
        let mut order = Vec::new();
        modules.insert("nls_ascii", dir.path(), &mut order).unwrap();
        assert!(order.is_empty());
        let error = modules.insert("evdev", dir.path(), &mut order).unwrap_err();
        assert!(error.to_string().contains("evdev"), "{error}");
    }

    #[test]
    fn compressed_modules_have_names_too() {
        assert_eq!(
            module_name("nls_iso8859-1.ko.xz").as_deref(),
            Some("nls_iso8859_1")
        );
        assert_eq!(module_name("fat.ko").as_deref(), Some("fat"));
        assert_eq!(module_name("modules.dep"), None);
    }
}
