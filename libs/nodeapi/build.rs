//! Compiles `proto/node.proto` to Rust without any system compiler.
//!
//! Invariant: maps are ordered, so that equal messages encode to equal bytes.
//! Failure: a mistake in the proto fails the build with its line and column.

use std::error;

fn main() -> Result<(), Box<dyn error::Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    // Source info turns the comments of the proto into documentation of the generated types.
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_file("node.proto")?;
    tonic_prost_build::configure()
        .btree_map(".")
        // The name of a kind is the name of its field, which the daemon lists and the agent looks
        // up.
        .type_attribute(
            "vmlet.node.v1.RunTaskRequest.kind",
            "#[derive(strum::IntoStaticStr, strum::VariantNames)] #[strum(serialize_all = \
             \"snake_case\")]",
        )
        .compile_fds(compiler.file_descriptor_set())?;
    println!("cargo::rerun-if-changed=proto/node.proto");
    Ok(())
}
