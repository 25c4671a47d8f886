//! Statistics of all domains in one call.
//!
//! Invariant: the list that libvirt allocates is copied and freed before anything else can happen;
//! only values that need neither QEMU's monitor nor the domain's job are requested, so that no hung
//! emulator can hold the call up.
//! Failure: libvirt's own error. What a driver does not know is absent.

use std::ffi::{CStr, c_int, c_ulonglong};
use std::ptr;

use uuid::Uuid;
use virt::connect::Connect;
use virt::error::Error;
use virt::sys;

use crate::DomainStats;

/// CPU time of all threads of the emulator, in nanoseconds.
const CPU_TIME: &CStr = c"cpu.time";

/// The statistics of every running domain.
pub(crate) fn all(connect: &Connect) -> Result<Vec<DomainStats>, Error> {
    let mut list: *mut sys::virDomainStatsRecordPtr = ptr::null_mut();
    let flags = sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
        | sys::VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT;
    // SAFETY: the handle is alive for the whole call; `list` is a local out-pointer, which libvirt
    // sets to a list of its own when it returns a number of records.
    let count = unsafe {
        sys::virConnectGetAllDomainStats(
            connect.as_ptr(),
            sys::VIR_DOMAIN_STATS_CPU_TOTAL,
            &raw mut list,
            flags,
        )
    };
    let Ok(count) = usize::try_from(count) else {
        return Err(Error::last_error());
    };
    if list.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: libvirt has just returned a list of `count` pointers to records; no other code has
    // it, and it stays as it is until it is freed below.
    let records = unsafe { std::slice::from_raw_parts(list, count) };
    let copies = records.iter().filter_map(|record| copy(*record)).collect();
    // SAFETY: `list` came from libvirt and is freed once; `records` is not used any more.
    unsafe { sys::virDomainStatsRecordListFree(list) };
    Ok(copies)
}

/// What a record specifies; `None` for a domain whose UUID cannot be had.
fn copy(record: sys::virDomainStatsRecordPtr) -> Option<DomainStats> {
    let mut uuid = [0; sys::VIR_UUID_BUFLEN as usize];
    // SAFETY: the record is an element of the list that libvirt returned and has not been freed; it
    // holds a reference to its domain. The buffer is as long as libvirt's contract requests.
    let (record, found) = unsafe {
        let record = record.as_ref()?;
        (record, sys::virDomainGetUUID(record.dom, uuid.as_mut_ptr()))
    };
    (found == 0).then(|| DomainStats {
        domain: Uuid::from_bytes(uuid),
        cpu_nanoseconds: number(record, CPU_TIME),
    })
}

fn number(record: &sys::virDomainStatsRecord, name: &CStr) -> Option<u64> {
    let mut value: c_ulonglong = 0;
    // SAFETY: `params` is the record's own array of `nparams` parameters, the name ends with NUL,
    // and `value` is a local of the type that the function writes. It writes only when the
    // parameter has that type.
    let found: c_int = unsafe {
        sys::virTypedParamsGetULLong(record.params, record.nparams, name.as_ptr(), &raw mut value)
    };
    (found == 1).then_some(value)
}
