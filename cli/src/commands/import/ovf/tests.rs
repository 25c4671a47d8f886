use super::*;

/// As VMware's programs write it.
pub(in crate::commands::import) const VMWARE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<Envelope vmw:buildId="build-1" xmlns="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1" xmlns:vmw="http://www.vmware.com/schema/ovf"
 xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData"
 xmlns:vssd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData">
 <References>
  <File ovf:href="web-1.vmdk" ovf:id="file1" ovf:size="7"/>
  <File ovf:href="web-2.vmdk" ovf:id="file2" ovf:size="7"/>
  <File ovf:href="tools.iso" ovf:id="file3"/>
 </References>
 <DiskSection><Info>disks</Info>
  <Disk ovf:capacity="40" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="vmdisk1" ovf:fileRef="file1"
   ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
  <Disk ovf:capacity="10" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="vmdisk2" ovf:fileRef="file2"/>
  <Disk ovf:capacity="5" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="vmdisk3"/>
 </DiskSection>
 <NetworkSection><Info/><Network ovf:name="VM Network"/><Network ovf:name="Storage"/></NetworkSection>
 <VirtualSystem ovf:id="web">
  <Info>a machine</Info><Name>web</Name>
  <OperatingSystemSection ovf:id="94" vmw:osType="ubuntu64Guest">
   <Info/><Description>Ubuntu Linux (64-bit)</Description></OperatingSystemSection>
  <VirtualHardwareSection><Info/>
   <System><vssd:VirtualSystemType>vmx-19</vssd:VirtualSystemType></System>
   <Item><rasd:AllocationUnits>hertz * 10^6</rasd:AllocationUnits><rasd:ElementName>4 virtual CPU(s)</rasd:ElementName>
    <rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>
    <rasd:VirtualQuantity>4</rasd:VirtualQuantity><vmw:CoresPerSocket ovf:required="false">2</vmw:CoresPerSocket></Item>
   <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:ElementName>8192MB of memory</rasd:ElementName>
    <rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType>
    <rasd:VirtualQuantity>8192</rasd:VirtualQuantity></Item>
   <Item><rasd:Address>0</rasd:Address><rasd:ElementName>SCSI Controller 0</rasd:ElementName>
    <rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType>
    <rasd:ResourceType>6</rasd:ResourceType></Item>
   <Item><rasd:AddressOnParent>1</rasd:AddressOnParent><rasd:ElementName>Hard Disk 2</rasd:ElementName>
    <rasd:HostResource>ovf:/disk/vmdisk2</rasd:HostResource><rasd:InstanceID>5</rasd:InstanceID>
    <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
   <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>Hard Disk 1</rasd:ElementName>
    <rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource><rasd:InstanceID>4</rasd:InstanceID>
    <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
   <Item><rasd:AddressOnParent>2</rasd:AddressOnParent><rasd:ElementName>Hard Disk 3</rasd:ElementName>
    <rasd:HostResource>ovf:/disk/vmdisk3</rasd:HostResource><rasd:InstanceID>6</rasd:InstanceID>
    <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
   <Item ovf:required="false"><rasd:ElementName>CD-ROM 1</rasd:ElementName>
    <rasd:HostResource>ovf:/file/file3</rasd:HostResource><rasd:InstanceID>7</rasd:InstanceID>
    <rasd:ResourceType>15</rasd:ResourceType></Item>
   <Item><rasd:AddressOnParent>7</rasd:AddressOnParent><rasd:Connection>VM Network</rasd:Connection>
    <rasd:ElementName>Ethernet 1</rasd:ElementName><rasd:InstanceID>8</rasd:InstanceID>
    <rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType><rasd:ResourceType>10</rasd:ResourceType></Item>
   <Item><rasd:AddressOnParent>8</rasd:AddressOnParent><rasd:Connection>Storage</rasd:Connection>
    <rasd:ElementName>Ethernet 2</rasd:ElementName><rasd:InstanceID>9</rasd:InstanceID>
    <rasd:ResourceSubType>E1000</rasd:ResourceSubType><rasd:ResourceType>10</rasd:ResourceType></Item>
   <vmw:Config ovf:required="false" vmw:key="firmware" vmw:value="efi"/>
   <vmw:Config ovf:required="false" vmw:key="bootOptions.efiSecureBootEnabled" vmw:value="true"/>
   <vmw:ExtraConfig ovf:required="false" vmw:key="nvram" vmw:value="web.nvram"/>
  </VirtualHardwareSection>
  <ProductSection><Info/><Property ovf:key="hostname" ovf:type="string"/><Property ovf:key="password"/></ProductSection>
  <AnnotationSection><Info/><Annotation>mine</Annotation></AnnotationSection>
  <EulaSection><Info/><License>long</License></EulaSection>
 </VirtualSystem>
</Envelope>"#;

/// As VirtualBox writes it.
pub(in crate::commands::import) const VIRTUALBOX: &str = r#"<?xml version="1.0"?>
<Envelope ovf:version="1.0" xml:lang="en-US" xmlns="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1" xmlns:vbox="http://www.virtualbox.org/ovf/machine"
 xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData"
 xmlns:vssd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData">
  <References><File ovf:id="file1" ovf:href="box-disk001.vmdk"/></References>
  <DiskSection><Info>list</Info>
    <Disk ovf:capacity="8589934592" ovf:diskId="vmdisk1" ovf:fileRef="file1"
     ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/></DiskSection>
  <NetworkSection><Info/><Network ovf:name="NAT"/></NetworkSection>
  <VirtualSystem ovf:id="box"><Info>A virtual machine</Info>
    <OperatingSystemSection ovf:id="96"><Info/><Description>Debian_64</Description></OperatingSystemSection>
    <VirtualHardwareSection><Info/>
      <System><vssd:VirtualSystemType>virtualbox-2.2</vssd:VirtualSystemType></System>
      <Item><rasd:Caption>2 virtual CPU</rasd:Caption><rasd:InstanceID>1</rasd:InstanceID>
        <rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>2</rasd:VirtualQuantity></Item>
      <Item><rasd:AllocationUnits>MegaBytes</rasd:AllocationUnits><rasd:InstanceID>2</rasd:InstanceID>
        <rasd:ResourceType>4</rasd:ResourceType><rasd:VirtualQuantity>1000</rasd:VirtualQuantity></Item>
      <Item><rasd:ElementName>sata0</rasd:ElementName><rasd:InstanceID>3</rasd:InstanceID>
        <rasd:ResourceSubType>AHCI</rasd:ResourceSubType><rasd:ResourceType>20</rasd:ResourceType></Item>
      <Item><rasd:ElementName>usb</rasd:ElementName><rasd:InstanceID>6</rasd:InstanceID><rasd:ResourceType>23</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:HostResource>/disk/vmdisk1</rasd:HostResource>
        <rasd:InstanceID>8</rasd:InstanceID><rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:Address>080027AABBCC</rasd:Address><rasd:Connection>NAT</rasd:Connection>
        <rasd:ElementName>Ethernet adapter on 'NAT'</rasd:ElementName><rasd:InstanceID>9</rasd:InstanceID>
        <rasd:ResourceSubType>virtio</rasd:ResourceSubType><rasd:ResourceType>10</rasd:ResourceType></Item>
    </VirtualHardwareSection>
    <vbox:Machine ovf:required="false" version="1.19-linux" name="box">
      <Hardware><Firmware type="BIOS"/><CPU count="2"/></Hardware></vbox:Machine>
  </VirtualSystem>
</Envelope>"#;

fn refused(text: &str) -> String {
    Description::parse(text, None).unwrap_err().to_string()
}

#[test]
fn a_package_of_vmware_is_read() {
    let read = Description::parse(VMWARE, None).unwrap();
    assert_eq!(read.hardware.processors(), Some(4));
    assert_eq!(read.hardware.memory().unwrap(), Some(8192 << 20));
    assert_eq!(read.hardware.version.as_deref(), Some("vmx-19"));
    assert!(read.is_efi() && read.has_secure_boot && read.has_license);
    assert_eq!(read.properties, ["hostname", "password"]);
    assert_eq!(read.ignored, ["ExtraConfig (1)", "AnnotationSection"]);
    assert_eq!(read.system.as_deref(), Some("Ubuntu Linux (64-bit)"));
    assert_eq!(read.disks[0].capacity, Some(40 << 30));
    assert_eq!(read.disks[2].file, None);
    assert_eq!(read.files[0].size, Some(7));
    let nics: Vec<_> = read.hardware.of_kind(kind::ETHERNET).collect();
    assert_eq!(nics[1].network.as_deref(), Some("Storage"));
    assert_eq!(nics[0].model.as_deref(), Some("VmxNet3"));
}

#[test]
fn a_package_of_virtualbox_is_read() {
    let read = Description::parse(VIRTUALBOX, None).unwrap();
    assert_eq!(read.hardware.processors(), Some(2));
    assert_eq!(read.hardware.memory().unwrap(), Some(1000 << 20));
    assert!(!read.is_efi() && read.ignored.is_empty());
    assert_eq!(read.firmware.as_deref(), Some("bios"));
    assert_eq!(read.disks[0].capacity, Some(8 << 30));
    let efi = VIRTUALBOX.replace("type=\"BIOS\"", "type=\"EFI64\"");
    assert!(Description::parse(&efi, None).unwrap().is_efi());
}

#[test]
fn only_one_machine_is_a_machine() {
    let machine = "<VirtualSystem><VirtualHardwareSection/></VirtualSystem>";
    let package = |inner: &str| format!("<Envelope>{inner}</Envelope>");
    assert!(Description::parse(&package(machine), None).is_ok());
    let nested = format!("<VirtualSystemCollection>{machine}</VirtualSystemCollection>");
    assert!(Description::parse(&package(&nested), None).is_ok());
    let two = package(&format!("{machine}{nested}"));
    assert!(refused(&two).contains("2 machines"), "{}", refused(&two));
    assert!(refused(&package("")).contains("0 machines"));
    assert!(refused("<Domain/>").contains("no OVF envelope"));
    assert!(refused(&package("<VirtualSystem/>")).contains("VirtualHardwareSection"));
}

#[test]
fn a_section_that_the_package_requires_is_honoured_or_refused() {
    let with = |section: &str| {
        VIRTUALBOX.replace("<NetworkSection>", &format!("{section}<NetworkSection>"))
    };
    let needed = with("<OwnSection ovf:required=\"true\"/>");
    assert!(
        refused(&needed).contains("\"OwnSection\""),
        "{}",
        refused(&needed)
    );
    let free = Description::parse(&with("<OwnSection ovf:required=\"false\"/>"), None);
    assert_eq!(free.unwrap().ignored, ["OwnSection"]);
}

#[test]
fn the_items_of_one_configuration_count() {
    let options = "<DeploymentOptionSection><Configuration ovf:id=\"small\"/>\
                   <Configuration ovf:id=\"large\" ovf:default=\"true\"/></DeploymentOptionSection><NetworkSection>";
    let item = |attributes: &str, cpus: u8| {
        format!(
            "<Item {attributes}><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>\
             <rasd:VirtualQuantity>{cpus}</rasd:VirtualQuantity></Item>"
        )
    };
    let items = item("ovf:configuration=\"small\"", 1)
        + &item("ovf:configuration=\"large huge\"", 16)
        + &item("ovf:bound=\"max\"", 64)
        + "</VirtualHardwareSection>";
    let text = VIRTUALBOX
        .replace("<NetworkSection>", options)
        .replace("</VirtualHardwareSection>", &items);
    let cpus = |configuration| {
        let read = Description::parse(&text, configuration).unwrap();
        read.hardware.processors()
    };
    assert_eq!(cpus(None), Some(16));
    assert_eq!(cpus(Some("small")), Some(1));
    let unknown = Description::parse(&text, Some("tiny")).unwrap_err();
    assert!(unknown.to_string().ends_with("small, large"), "{unknown}");
    let none = Description::parse(VIRTUALBOX, Some("tiny")).unwrap_err();
    assert!(none.to_string().ends_with("none"), "{none}");
}

#[test]
fn sizes_that_cannot_be_read_are_no_other_sizes() {
    let without = VIRTUALBOX.replace("<rasd:AllocationUnits>MegaBytes</rasd:AllocationUnits>", "");
    let read = Description::parse(&without, None).unwrap();
    assert!(read.hardware.memory().is_err());
    let capacity = VIRTUALBOX.replace("8589934592", "${size}");
    assert!(refused(&capacity).contains("no number of bytes"));
}
