//! The annotations of a pod that Vmlet reads, under its own names and the predecessor's.
//!
//! Invariant: when both names of a setting are present, ours wins. Values are text from the user
//! who created the pod: length-checked here, parsed by the setting's type.
//! Failure: [`AnnotationError`] names the annotation as the user wrote it, its value and what is
//! allowed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use crate::guest_data::{Source, SourceKind};
use crate::image::LONGEST_IMAGE_URL;
use crate::machine::{FastDeploy, RootContent};
use crate::names;

/// Longest value that a setting other than a text can need, in bytes.
const MAX_VALUE: usize = 256;
/// Longest text; all annotations of an object together are no longer.
const MAX_TEXT: usize = 256 * 1024;

macro_rules! alias {
    () => {
        None
    };
    ($alias:literal) => {
        Some($alias)
    };
}

/// Declares the settings: each has our name, and the predecessor's if it had one.
macro_rules! keys {
    ($( $(#[$doc:meta])+ $Key:ident = $ours:ident $(or $alias:literal)?; )+) => {
        /// A setting that can be given by annotation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Key { $( $(#[$doc])+ $Key, )+ }

        impl Key {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$Key),+];

            /// Our name, and the predecessor's if it had one.
            pub const fn names(self) -> (&'static str, Option<&'static str>) {
                match self {
                    $( Self::$Key => (names::$ours, alias!($($alias)?)), )+
                }
            }
        }
    };
}

keys! {
    /// URL that the name of the image refers to.
    ImageUrl = IMAGE_URL;
    /// Secret with certificates for the server of the image.
    ImageTlsSecret = IMAGE_TLS_SECRET;
    /// Number of virtual CPUs.
    VcpuCount = VCPU_COUNT or "VirtletVCPUCount";
    /// Guest memory.
    Memory = MEMORY;
    /// Most virtual CPUs that the machine can get while it runs.
    MaxVcpus = MAX_VCPUS;
    /// Most memory that the guest can get while it runs.
    MaxMemory = MAX_MEMORY;
    /// CPU model that the guest sees.
    CpuModel = CPU_MODEL or "VirtletCPUModel";
    /// Board that the guest sees.
    MachineType = MACHINE_TYPE;
    /// Firmware that boots the guest.
    Firmware = FIRMWARE;
    /// Whether the guest has a port for `vmlet-guest`, and gets it from cloud-init.
    GuestAgent = GUEST_AGENT;
    /// How the root disk is made from the image. On the pod only.
    FastDeploy = FAST_DEPLOY;
    /// What becomes of a root claim that has the content of another image.
    RootContent = ROOT_CONTENT;
    /// Size of the root disk when larger than the image's.
    RootVolumeSize = ROOT_VOLUME_SIZE or "VirtletRootVolumeSize";
    /// SMBIOS system UUID.
    SystemUuid = SYSTEM_UUID or "VirtletSystemUUID";
    /// Whether the guest is connected at all.
    Network = NETWORK;
    /// Hardware address of the guest's first NIC.
    MacAddress = MAC_ADDRESS;
    /// Whether the guest may send with any source address. Only for users who may set annotations
    /// of a `.protected` domain.
    AllowSpoofing = ALLOW_SPOOFING;
    /// UID of the VirtualMachine object whose disk is booted.
    VmDisk = VM_DISK;
    /// What the pod is there for.
    Role = POD_ROLE_LABEL;
    /// UID of the claim in which backups are kept.
    BackupTargetClaim = BACKUP_TARGET_CLAIM;
    /// Whether saved memory is resumed.
    Restore = RESTORE;
    /// Whether the guest starts paused, until it is resumed.
    StartPaused = START_PAUSED;
    /// UUID that the hypervisor knows the machine by.
    InstanceUuid = INSTANCE_UUID;
    /// UUID that the guest reads from its firmware.
    BiosUuid = BIOS_UUID;
    /// UUID that is another one when the root disk on a volume has become an earlier one.
    DiskGeneration = DISK_GENERATION;
    /// Whether the guest has a cloud-init disk.
    CloudInit = CLOUD_INIT;
    /// How directories of volumes reach the guest.
    Shares = SHARES;
    /// Files of volumes that are disks of the guest.
    FileDisks = FILE_DISKS;
    /// How guest data is laid out.
    SeedType = SEED_TYPE or "VirtletCloudInitImageType";
    /// Identity of the guest for cloud-init.
    InstanceId = INSTANCE_ID;
    /// Keys that win over the generated meta-data.
    MetaData = META_DATA or "VirtletCloudInitMetaData";
    /// cloud-init's network configuration, passed on as it is.
    NetworkConfig = NETWORK_CONFIG;
    /// Object that cloud-init's network configuration comes from.
    NetworkConfigSource = NETWORK_CONFIG_SOURCE;
    /// Version of the network configuration that is made of the pod's network.
    NetworkVersion = NETWORK_VERSION;
    /// Whether the guest is to get all addresses by DHCP.
    ForceDhcp = FORCE_DHCP or "VirtletForceDHCPNetworkConfig";
    /// Object whose keys are files of the guest.
    FilesSource = FILES_SOURCE or "VirtletFilesFromDataSource";
    /// Object whose keys are answer files of Windows Setup.
    SysprepSource = SYSPREP_SOURCE;
    /// User data, a map.
    UserData = USER_DATA or "VirtletCloudInitUserData";
    /// Whether the pod's own user data and keys replace those of the sources.
    UserDataOverwrite = USER_DATA_OVERWRITE or "VirtletCloudInitUserDataOverwrite";
    /// User data, passed on as it is.
    UserDataScript = USER_DATA_SCRIPT or "VirtletCloudInitUserDataScript";
    /// Object that user data come from.
    UserDataSource = USER_DATA_SOURCE or "VirtletCloudInitUserDataSource";
    /// Key of that object that is passed on as it is.
    UserDataSourceKey = USER_DATA_SOURCE_KEY or "VirtletCloudInitUserDataSourceKey";
    /// How that key's value is encoded.
    UserDataSourceEncoding = USER_DATA_SOURCE_ENCODING or "VirtletCloudInitUserDataSourceEncoding";
    /// SSH keys, one a line.
    SshKeys = SSH_KEYS or "VirtletSSHKeys";
    /// Object that SSH keys come from.
    SshKeysSource = SSH_KEYS_SOURCE or "VirtletSSHKeySource";
}

/// The limit of a pod that is the memory of its guest, where no annotation says it.
pub(crate) const MEMORY_LIMIT: &str = "resources.limits.memory";

/// An annotation, or the limit in its place, whose value makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{name} = {value:?}: {reason}", kind(.name))]
pub struct AnnotationError {
    /// The name that the pod uses.
    pub name: String,
    /// The value, shortened when it is long.
    pub value: String,
    /// What is allowed.
    pub reason: String,
}

fn kind(name: &str) -> &'static str {
    match name {
        MEMORY_LIMIT => "",
        _ => "annotation ",
    }
}

/// A pod's annotations.
#[derive(Debug, Clone, Copy)]
pub struct Annotations<'a>(&'a BTreeMap<String, String>);

impl<'a> Annotations<'a> {
    /// Reads from the map of the pod.
    pub const fn new(map: &'a BTreeMap<String, String>) -> Self {
        Self(map)
    }

    /// The name in use and the value of a setting.
    pub fn raw(self, key: Key) -> Option<(&'static str, &'a str)> {
        let (ours, alias) = key.names();
        [Some(ours), alias]
            .into_iter()
            .flatten()
            .find_map(|name| Some((name, self.0.get(name)?.as_str())))
    }

    /// The parsed value of a setting, `None` when the pod does not give it.
    pub fn get<T>(self, key: Key) -> Result<Option<T>, AnnotationError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let Some((name, value)) = self.short(key, MAX_VALUE)? else {
            return Ok(None);
        };
        let refuse = |reason| error(name, value, reason);
        value
            .parse()
            .map(Some)
            .map_err(|e: T::Err| refuse(e.to_string()))
    }

    /// The URL that the name of the image refers to. An error shows nothing of its query, which
    /// may be a secret.
    pub fn image_url(self) -> Result<Option<&'a str>, AnnotationError> {
        match self.raw(Key::ImageUrl) {
            Some((name, url)) if url.len() > LONGEST_IMAGE_URL => {
                let shown = url.split(['?', '#']).next().unwrap_or_default();
                let reason = format!("longer than {LONGEST_IMAGE_URL} bytes");
                Err(error(name, shown, reason))
            }
            found => Ok(found.map(|(_, url)| url)),
        }
    }

    /// The Secret with certificates for the server of the image.
    pub fn image_tls_secret(self) -> Result<Option<Source>, AnnotationError> {
        let Some((name, value)) = self.raw(Key::ImageTlsSecret) else {
            return Ok(None);
        };
        let secret = Source::new(SourceKind::Secret, value);
        let refuse = |_| error(name, value, "the name of a Secret is needed".to_owned());
        secret.map(Some).map_err(refuse)
    }

    /// How the root disk is made.
    pub fn fast_deploy(self) -> Result<FastDeploy, AnnotationError> {
        Ok(self.get(Key::FastDeploy)?.unwrap_or_default())
    }

    /// What becomes of a root claim that has the content of another image.
    pub fn root_content(self) -> Result<RootContent, AnnotationError> {
        Ok(self.get(Key::RootContent)?.unwrap_or_default())
    }

    /// A setting that is a text of some length.
    pub(crate) fn text(self, key: Key) -> Result<Option<&'a str>, AnnotationError> {
        Ok(self.short(key, MAX_TEXT)?.map(|(_, value)| value))
    }

    /// The name in use and the value of a setting of at most `most` bytes.
    fn short(
        self,
        key: Key,
        most: usize,
    ) -> Result<Option<(&'static str, &'a str)>, AnnotationError> {
        match self.raw(key) {
            Some((name, value)) if value.len() > most => {
                Err(error(name, value, format!("longer than {most} bytes")))
            }
            found => Ok(found),
        }
    }

    /// The error of a setting whose value does not go with the others.
    pub(crate) fn refuse(self, key: Key, reason: String) -> AnnotationError {
        let (name, value) = self.raw(key).unwrap_or((key.names().0, ""));
        error(name, value, reason)
    }
}

fn error(name: &str, value: &str, reason: String) -> AnnotationError {
    AnnotationError {
        name: name.to_owned(),
        value: value.chars().take(64).collect(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn our_name_wins_over_the_alias() {
        let both = map(&[("VirtletVCPUCount", "2"), ("vmlet.dev/vcpu-count", "3")]);
        assert_eq!(
            Annotations::new(&both).get::<u8>(Key::VcpuCount),
            Ok(Some(3))
        );
        let alias = map(&[("VirtletVCPUCount", "2")]);
        assert_eq!(
            Annotations::new(&alias).get::<u8>(Key::VcpuCount),
            Ok(Some(2))
        );
        assert_eq!(
            Annotations::new(&map(&[])).get::<u8>(Key::VcpuCount),
            Ok(None)
        );
    }

    #[test]
    fn an_error_names_the_annotation_as_written_and_its_value() {
        let bad = map(&[("VirtletVCPUCount", "many")]);
        let error = Annotations::new(&bad)
            .get::<u8>(Key::VcpuCount)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("VirtletVCPUCount") && text.contains("\"many\""),
            "{text}"
        );
    }

    #[test]
    fn a_huge_value_is_refused_without_repeating_it() {
        let huge = map(&[("vmlet.dev/memory", &"9".repeat(10_000))]);
        let error = Annotations::new(&huge).get::<u64>(Key::Memory).unwrap_err();
        assert!(error.to_string().len() < 200, "{error}");
    }

    #[test]
    fn the_url_of_an_image_may_be_long_and_its_query_is_not_shown() {
        let read = |query: usize| {
            let url = format!("https://h/a?{}", "k".repeat(query));
            let map = map(&[("vmlet.dev/image-url", &url)]);
            Annotations::new(&map)
                .image_url()
                .map(|url| url.map(str::len))
        };
        assert_eq!(read(2048 - 12), Ok(Some(2048)));
        let refused = read(2048 - 11).unwrap_err().to_string();
        assert!(refused.contains("longer than 2048 bytes"), "{refused}");
        assert!(!refused.contains("kk"), "{refused}");
        assert_eq!(Annotations::new(&map(&[])).image_url(), Ok(None));
    }

    #[test]
    fn the_secret_for_the_server_of_an_image_has_a_name_that_secrets_have() {
        let read = |value: &str| {
            let map = map(&[("vmlet.dev/image-tls-secret", value)]);
            let read = Annotations::new(&map).image_tls_secret();
            read.map(|source| source.map(|source| source.name().to_owned()))
        };
        assert_eq!(read("images-tls"), Ok(Some("images-tls".to_owned())));
        for wrong in ["", "other/secret", "Upper", &"a".repeat(254)] {
            let refused = read(wrong).unwrap_err().to_string();
            assert!(refused.contains("the name of a Secret"), "{refused}");
        }
    }

    #[test]
    fn a_value_has_a_greatest_length() {
        let refused = |name: &str, key, length| {
            let map = map(&[(name, &"9".repeat(length))]);
            let given = Annotations::new(&map);
            match key {
                Key::UserData => given.text(key).map(drop).err(),
                _ => given.get::<String>(key).map(drop).err(),
            }
        };
        let short = |length| refused("vmlet.dev/memory", Key::Memory, length);
        assert_eq!(short(256), None);
        let error = short(257).unwrap().to_string();
        assert!(error.contains("longer than 256 bytes"), "{error}");
        let text = |length| refused("vmlet.dev/cloud-init-user-data", Key::UserData, length);
        assert_eq!(text(262_144), None);
        let error = text(262_145).unwrap().to_string();
        assert!(error.contains("longer than 262144 bytes"), "{error}");
    }
}
