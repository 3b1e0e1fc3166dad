//! The exports: what the host calls, turned into one trait.
//!
//! One VM has one [`Vm`], which owns its roots and streams; contexts are numbers. The host may call
//! back while it is being called (a resumed stream can be answered on the spot), so work that can
//! cause this is returned as [`Resume`] values and done after the `Vm` is free again.

use core::cell::RefCell;

/// Lets a stream go on, or keeps it where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// Go on.
    Continue = 0,
    /// Hold.
    Pause = 1,
}

/// A stream to let go after the callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume(pub u32);

/// One VM. Every method is called by the host, none may panic.
pub trait Vm {
    /// A root's configuration has arrived; `false` refuses it.
    fn configure(&mut self, root: u32, document: &[u8]) -> bool;
    /// A root's timer. Returned streams are let go afterwards.
    fn tick(&mut self, root: u32) -> Vec<Resume>;
    /// A callout was answered. No headers: it was reset, or the answer was too large.
    fn answered(&mut self, token: u32, headers: usize);
    /// A stream begins.
    fn opened(&mut self, _stream: u32, _root: u32) {}
    /// The request's headers are here.
    fn request_headers(&mut self, _stream: u32, _end: bool) -> Action {
        Action::Continue
    }
    /// Body bytes are here; `size` is all that is held.
    fn request_body(&mut self, _stream: u32, _size: usize, _end: bool) -> Action {
        Action::Continue
    }
    /// The body ended with trailers.
    fn request_trailers(&mut self, _stream: u32) -> Action {
        Action::Continue
    }
    /// The response's headers are here.
    fn response_headers(&mut self, _stream: u32, _end: bool) -> Action {
        Action::Continue
    }
    /// A piece of the response body is here.
    fn response_body(&mut self, _stream: u32, _size: usize, _end: bool) -> Action {
        Action::Continue
    }
    /// The stream is over; properties can still be read. Returned streams are let go afterwards.
    fn logged(&mut self, _stream: u32) -> Vec<Resume> {
        Vec::new()
    }
    /// The context is gone.
    fn deleted(&mut self, _context: u32) {}
}

/// Runs `f` on the VM; `otherwise` when the host called back into a busy VM, which cannot be served.
pub fn with<V, T>(vm: &RefCell<V>, otherwise: T, f: impl FnOnce(&mut V) -> T) -> T {
    vm.try_borrow_mut().map_or(otherwise, |mut vm| f(&mut vm))
}

/// Defines the module's exports over a [`Vm`] made by `$new`.
#[macro_export]
macro_rules! export_vm {
    ($type:ty, $new:expr) => {
        #[allow(unsafe_code, missing_docs)]
        mod exports {
            use super::*;
            use core::cell::RefCell;
            use $crate::host;
            use $crate::vm::{Resume, Vm, with};

            thread_local! {
                static VM: RefCell<$type> = RefCell::new($new);
            }

            fn vm<T>(otherwise: T, f: impl FnOnce(&mut $type) -> T) -> T {
                VM.with(|vm| with(vm, otherwise, f))
            }

            fn resume(streams: Vec<Resume>) {
                for Resume(stream) in streams {
                    let _ = host::resume_request(stream);
                }
            }

            #[cfg(target_os = "wasi")]
            unsafe extern "C" {
                fn __wasm_call_ctors();
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn _initialize() {
                // SAFETY: the linker's constructors, run once before anything else.
                #[cfg(target_os = "wasi")]
                unsafe {
                    __wasm_call_ctors();
                }
                host::start_logging();
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_abi_version_0_2_1() {}
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
                $crate::memory::allocate(size)
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_context_create(context: u32, root: u32) {
                if root != 0 {
                    vm((), |vm| vm.opened(context, root));
                }
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_vm_start(_: u32, _: usize) -> u32 {
                1
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_configure(root: u32, size: usize) -> u32 {
                let document = host::buffer(host::Buffer::PluginConfiguration, 0, size).unwrap_or_default();
                u32::from(vm(false, |vm| vm.configure(root, &document)))
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_tick(root: u32) {
                resume(vm(Vec::new(), |vm| vm.tick(root)));
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_http_call_response(_: u32, token: u32, headers: usize, _: usize, _: usize) {
                vm((), |vm| vm.answered(token, headers));
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_request_headers(stream: u32, _: usize, end: u32) -> u32 {
                vm($crate::vm::Action::Continue, |vm| {
                    vm.request_headers(stream, end != 0)
                }) as u32
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_request_body(stream: u32, size: usize, end: u32) -> u32 {
                vm($crate::vm::Action::Continue, |vm| {
                    vm.request_body(stream, size, end != 0)
                }) as u32
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_request_trailers(stream: u32, _: usize) -> u32 {
                vm($crate::vm::Action::Continue, |vm| vm.request_trailers(stream)) as u32
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_response_headers(stream: u32, _: usize, end: u32) -> u32 {
                vm($crate::vm::Action::Continue, |vm| {
                    vm.response_headers(stream, end != 0)
                }) as u32
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_response_body(stream: u32, size: usize, end: u32) -> u32 {
                vm($crate::vm::Action::Continue, |vm| {
                    vm.response_body(stream, size, end != 0)
                }) as u32
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_done(_: u32) -> u32 {
                1
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_log(stream: u32) {
                resume(vm(Vec::new(), |vm| vm.logged(stream)));
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn proxy_on_delete(context: u32) {
                vm((), |vm| vm.deleted(context));
            }
        }
    };
}
