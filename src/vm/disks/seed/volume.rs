//! The files of a cloud-init volume in each layout, and of a volume for Windows Setup.
//!
//! Invariant: the names are those that the data source of cloud-init reads; what is run at each
//! boot is in one directory beside them.
//! Failure: none; an agent that cannot be read is left out, with a line in the log.

use std::fs;
use std::path::Path;

use cloudinit_image::{CONFIG_DRIVE, File, NO_CLOUD};
use podspec::{AnswerFile, CloudData, Layout, NetworkData};
use serde_json::json;

use super::{shares, vendor};
use crate::vm::shares::Share;

/// Label of a volume for Windows Setup.
const UNATTEND: &str = "unattend";

/// By which cloud-init, and the boot, find the volume.
pub(super) const fn label(layout: Layout) -> &'static str {
    match layout {
        Layout::NoCloud => NO_CLOUD,
        Layout::ConfigDrive => CONFIG_DRIVE,
    }
}

/// Label and files of a volume for Windows Setup, which looks into each CD-ROM.
pub(super) fn sysprep(files: Vec<AnswerFile>) -> (&'static str, Vec<File>) {
    let file = |AnswerFile { name, content }| File {
        name: name.to_owned(),
        content,
    };
    (UNATTEND, files.into_iter().map(file).collect())
}

/// All files; `agent` is the program that the guest gets, too. Blocks.
pub(super) fn files(data: CloudData, shared: &[Share], agent: Option<&Path>) -> Vec<File> {
    let file = |name: &str, content: Vec<u8>| File {
        name: name.to_owned(),
        content,
    };
    let vendor_data = vendor::vendor_data(data.layout);
    let network = match data.network {
        NetworkData::Given(text) => Some(text),
        NetworkData::Generated { .. } => None,
    };
    let (names, vendor_data) = match data.layout {
        Layout::NoCloud => {
            let names = ["meta-data", "user-data", "vendor-data", "network-config"];
            (names.map(str::to_owned), vendor_data)
        }
        Layout::ConfigDrive => {
            let names = [
                "meta_data.json",
                "user_data",
                "vendor_data.json",
                "network_data.json",
            ];
            let text = format!("{:#}\n", json!({"cloud-init": vendor_data}));
            (names.map(|name| format!("openstack/latest/{name}")), text)
        }
    };
    let [meta_data, user_data, vendor, network_config] = &names;
    let mut all = vec![
        file(meta_data, data.meta_data),
        file(user_data, data.user_data),
        file(vendor, vendor_data.into_bytes()),
    ];
    all.extend(network.map(|text| file(network_config, text)));
    let folder = vendor::FOLDER;
    all.push(file(&format!("{folder}/boot.sh"), vendor::BOOT.to_vec()));
    let mounts = shares::mounts(shared).into_bytes();
    all.push(file(&format!("{folder}/shares.sh"), mounts));
    let puts = vendor::puts(&data.files).into_bytes();
    all.push(file(&format!("{folder}/files.sh"), puts));
    let contents = data.files.into_iter().enumerate();
    all.extend(contents.map(|(n, of)| file(&format!("{folder}/files/{n}"), of.content)));
    all.extend(agent.map_or_else(Vec::new, with_agent));
    all
}

/// The agent for guests, and what installs it. Blocks.
fn with_agent(program: &Path) -> Vec<File> {
    let file = |name: String, content| File { name, content };
    let script = format!("{}/install-agent.sh", vendor::FOLDER);
    match fs::read(program) {
        Ok(content) => vec![
            file(script, vendor::INSTALL.to_vec()),
            file("vmlet-guest".to_owned(), content),
        ],
        Err(error) => {
            let program = program.display();
            let error = crate::one_line(&error);
            tracing::warn!(%program, error, "guest agent not on the seed image");
            Vec::new()
        }
    }
}
