//! `CUresult`: the codes that the library returns, with their names.

use std::ffi::{CStr, c_char};

use apportion_sim_machine::CudaRefusal;

use crate::export::exports;
use crate::pointer::Out;

/// A `CUresult` that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CudaError(pub(crate) i32);

/// The result of a handler.
pub(crate) type Outcome = Result<(), CudaError>;

macro_rules! errors {
    (given: $($code:literal $name:ident $text:literal;)* foreign: $($other:literal $title:ident $saying:literal;)*) => {
        $(pub(crate) const $name: CudaError = CudaError($code);)*

        /// Code, name and description.
        static ERRORS: &[(i32, &CStr, &CStr)] = &[
            $(($code, c_name!($name), $text),)*
            $(($other, c_name!($title), $saying),)*
        ];
    };
}

macro_rules! c_name {
    ($name:ident) => {
        match CStr::from_bytes_with_nul(concat!("CUDA_ERROR_", stringify!($name), "\0").as_bytes())
        {
            Ok(name) => name,
            Err(_) => panic!("a name contains no zero byte"),
        }
    };
}

// Codes that the library returns by itself, and codes that only a rule makes it return.
errors! {
given:
    1 INVALID_VALUE c"invalid argument";
    2 OUT_OF_MEMORY c"out of memory";
    3 NOT_INITIALIZED c"initialization error";
    46 DEVICE_UNAVAILABLE c"CUDA-capable device(s) is/are busy or unavailable";
    100 NO_DEVICE c"no CUDA-capable device is detected";
    101 INVALID_DEVICE c"invalid device ordinal";
    200 INVALID_IMAGE c"device kernel image is invalid";
    201 INVALID_CONTEXT c"invalid device context";
    301 FILE_NOT_FOUND c"file not found";
    304 OPERATING_SYSTEM c"OS call failed or operation not supported on this OS";
    400 INVALID_HANDLE c"invalid resource handle";
    401 ILLEGAL_STATE c"the operation cannot be performed in the present state";
    500 NOT_FOUND c"named symbol not found";
    600 NOT_READY c"device not ready";
    704 PEER_ACCESS_ALREADY_ENABLED c"peer access is already enabled";
    705 PEER_ACCESS_NOT_ENABLED c"peer access has not been enabled";
    709 CONTEXT_IS_DESTROYED c"context is destroyed";
    712 HOST_MEMORY_ALREADY_REGISTERED c"part or all of the requested memory range is already mapped";
    713 HOST_MEMORY_NOT_REGISTERED c"pointer does not correspond to a registered memory region";
    800 NOT_PERMITTED c"operation not permitted";
    801 NOT_SUPPORTED c"operation not supported";
    914 INVALID_RESOURCE_TYPE c"invalid resource type";
    915 INVALID_RESOURCE_CONFIGURATION c"invalid resource configuration";
    999 UNKNOWN c"unknown error";
foreign:
    205 MAP_FAILED c"mapping of buffer object failed";
    4 DEINITIALIZED c"driver shutting down";
    34 STUB_LIBRARY c"CUDA driver is a stub library";
    206 UNMAP_FAILED c"unmapping of buffer object failed";
    208 ALREADY_MAPPED c"resource already mapped";
    209 NO_BINARY_FOR_GPU c"no kernel image is available for execution on the device";
    211 NOT_MAPPED c"resource not mapped";
    217 PEER_ACCESS_UNSUPPORTED c"peer access is not supported between these two devices";
    218 INVALID_PTX c"a PTX JIT compilation failed";
    700 ILLEGAL_ADDRESS c"an illegal memory access was encountered";
    701 LAUNCH_OUT_OF_RESOURCES c"too many resources requested for launch";
    708 PRIMARY_CONTEXT_ACTIVE c"cannot set while device is active in this process";
    719 LAUNCH_FAILED c"unspecified launch failure";
    802 SYSTEM_NOT_READY c"system not yet initialized";
    402 LOSSY_QUERY c"attempted introspection would be semantically lossy";
    904 STREAM_CAPTURE_UNJOINED c"capturing stream has unjoined work";
    900 STREAM_CAPTURE_UNSUPPORTED c"operation not permitted when stream is capturing";
    901 STREAM_CAPTURE_INVALIDATED c"operation failed due to a previous error during capture";
    902 STREAM_CAPTURE_MERGE c"operation would result in a merge of separate capture sequences";
    903 STREAM_CAPTURE_UNMATCHED c"capture was not ended in the same stream as it began";
    906 STREAM_CAPTURE_IMPLICIT c"operation would make the legacy stream depend on a capturing blocking stream";
    907 CAPTURED_EVENT c"operation not permitted on an event last recorded in a capturing stream";
    910 GRAPH_EXEC_UPDATE_FAILURE c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    908 STREAM_CAPTURE_WRONG_THREAD c"attempt to terminate a thread-local capture sequence from another thread";
}

impl From<CudaRefusal> for CudaError {
    fn from(refusal: CudaRefusal) -> Self {
        match refusal {
            CudaRefusal::OutOfMemory => OUT_OF_MEMORY,
            CudaRefusal::InvalidValue => INVALID_VALUE,
            CudaRefusal::InvalidDevice => INVALID_DEVICE,
            CudaRefusal::InvalidContext => INVALID_CONTEXT,
            CudaRefusal::NotSupported => NOT_SUPPORTED,
            CudaRefusal::IllegalState => ILLEGAL_STATE,
            CudaRefusal::NotReady => NOT_READY,
            CudaRefusal::NotPermitted => NOT_PERMITTED,
            CudaRefusal::Code(code) => Self(code),
        }
    }
}

exports! {
    cuGetErrorName(error: i32, out: Out<*const c_char>) = get_name => "cuGetErrorName" @ 6000, anytime;
    cuGetErrorString(error: i32, out: Out<*const c_char>) = get_text => "cuGetErrorString" @ 6000, anytime;
}

fn get_name(code: i32, out: Out<*const c_char>) -> Outcome {
    if code == 0 {
        return out.put(c"CUDA_SUCCESS".as_ptr());
    }
    let row = ERRORS.iter().find(|row| row.0 == code);
    out.put(row.map_or(std::ptr::null(), |row| row.1.as_ptr()))?;
    row.map(drop).ok_or(INVALID_VALUE)
}

fn get_text(code: i32, out: Out<*const c_char>) -> Outcome {
    if code == 0 {
        return out.put(c"no error".as_ptr());
    }
    let row = ERRORS.iter().find(|row| row.0 == code);
    out.put(row.map_or(std::ptr::null(), |row| row.2.as_ptr()))?;
    row.map(drop).ok_or(INVALID_VALUE)
}
