//! What the boot script of a guest could not mount or write, in sentences for the pod's events.
//!
//! Invariant: the paths are of the guest; they are compared with those of the pod, and never shown.
//! Failure: none.

use super::model::Spec;
use super::shares::Share;

impl Spec {
    /// A sentence for each share and each mount of the pod that these paths name, and one for all
    /// others, which come from annotations.
    pub fn missing(&self, paths: &[String]) -> Vec<String> {
        let shares = self.shares.iter().filter(|share| !share.is_of_pod());
        let mut sentences: Vec<_> = shares
            .clone()
            .filter(|share| paths.contains(&share.path))
            .map(not_mounted)
            .collect();
        let is_share = |path: &str| shares.clone().any(|share| share.path == path);
        let mounts = self.config.mounts.iter();
        let mut mounts: Vec<_> = mounts.map(|mount| mount.container_path.as_str()).collect();
        // The innermost mount is the one that has the file.
        mounts.sort_by_key(|mount| std::cmp::Reverse(mount.len()));
        for path in paths.iter().filter(|path| self.seed && !is_share(path)) {
            let mount = mounts.iter().find(|mount| is_at_or_below(path, mount));
            let sentence = not_written(mount.copied());
            if !sentences.contains(&sentence) {
                sentences.push(sentence);
            }
        }
        sentences
    }
}

fn is_at_or_below(path: &str, mount: &str) -> bool {
    let rest = path.strip_prefix(mount);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || mount.ends_with('/'))
}

fn not_mounted(Share { path, protocol, .. }: &Share) -> String {
    format!(
        "the guest could not mount its directory {path}, and what it writes there is not in the \
         volume: a file may be in its place, or the guest lacks {}; its console has the reason",
        protocol.name()
    )
}

fn not_written(mount: Option<&str>) -> String {
    let of = match mount {
        Some(mount) => format!("its mount {mount}"),
        None => "the pod's annotations".to_owned(),
    };
    format!(
        "the guest could not write a file of {of}: a directory may be in its place, or the disk is \
         full or read-only; its console names the file"
    )
}
