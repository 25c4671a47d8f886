//! Compiles `proto/api.proto` to Rust without any system compiler.
//!
//! Invariant: maps are ordered, so that equal messages encode to equal bytes and lists are stable.
//! Failure: a mistake in the proto fails the build with its line and column.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).open_file("api.proto")?;
    fs::write(
        out.join("descriptor.bin"),
        compiler.encode_file_descriptor_set(),
    )?;

    let files = compiler.file_descriptor_set().file;
    let services = files.iter().flat_map(|file| &file.service);
    let methods = services.flat_map(|service| &service.method);
    let names = methods.map(|method| method.name());
    fs::write(
        out.join("methods.rs"),
        format!("&{:?}", names.collect::<Vec<_>>()),
    )?;

    // Source info turns the comments of the proto into documentation of the generated types.
    compiler.include_source_info(true);
    tonic_prost_build::configure()
        .btree_map(".")
        .generate_default_stubs(true)
        .skip_debug(["runtime.v1.AuthConfig"])
        .compile_fds(compiler.file_descriptor_set())?;
    println!("cargo::rerun-if-changed=proto/api.proto");
    Ok(())
}
