//! Writes the manifests of all kinds, and their fields into the pages about them: `cargo xtask
//! crds` calls it with the repository's folder.
//!
//! Invariant: what is in `deploy/crds` afterwards is what the types say, no more.
//! Failure: a file that cannot be written is named; the exit code is 1.

mod pages;
mod render;

use std::io;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("crds: name the folder of the repository");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crds: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    let pages = folder.join("docs/kinds");
    let manifests = folder.join("deploy/crds");
    for (name, text) in pages::pages(&pages)? {
        std::fs::write(pages.join(name), text)?;
    }
    let folder = manifests;
    let files = render::files().map_err(io::Error::other)?;
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        if !files.contains_key(entry.file_name().to_string_lossy().as_ref()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    for (name, text) in files {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}
