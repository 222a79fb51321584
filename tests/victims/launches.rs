//! The steps that launch kernels, in every way that there is. A kernel's name says what it needs.

use crate::code::text;
use crate::driver::{Driver, KernelNode, LaunchConfig, SingleThreadLaunch};
use crate::script::{ScriptWords, StepOutcome, VictimProgram, result};

/// What the driver says of a block that is too large.
const INVALID_VALUE: i32 = 1;

impl VictimProgram {
    /// A step that launches a kernel. `None` for other verbs. The `spill` steps need local memory for each thread, and
    /// `launch` makes the driver take memory that no call announces.
    pub(crate) fn launch_step(
        &mut self,
        verb: &str,
        words: &mut ScriptWords,
    ) -> Option<StepOutcome> {
        let name = match verb {
            "launch" => format!("hidden_{}mib\0", words.bytes() >> 20),
            _ if verb.starts_with("spill") => format!("local_{}b\0", words.bytes()),
            _ => return None,
        };
        let code = self.launch(verb, &name).err().unwrap_or(0);
        // There are no outputs that could have been written.
        Some(match code {
            0 => StepOutcome::of(0),
            _ => StepOutcome::with(code, [1]),
        })
    }

    fn launch(&mut self, verb: &str, name: &str) -> Result<(), i32> {
        let driver = self.driver()?;
        let (mut code, mut kernel, image) = (0, 0, text(4));
        if verb == "spillkernel" {
            result(driver.cuLibraryLoadData(Some(&mut code), image.as_ptr(), 0, 0, 0, 0, 0, 0))?;
            result(driver.cuLibraryGetKernel(Some(&mut kernel), code, name.as_ptr()))?;
            let done = plain(driver, kernel, 1, 0);
            return done.and(result(driver.cuLibraryUnload(code)));
        }
        result(driver.cuModuleLoadData(Some(&mut code), image.as_ptr()))?;
        let function = function(driver, code, name)?;
        let done = match verb {
            // The module stays loaded.
            "launch" => return plain(driver, function, 1, 0),
            "spillex" => {
                let config = LaunchConfig::of_one_thread();
                result(driver.cuLaunchKernelEx(&config, function, 0, 0))
            }
            "spillcooperative" => {
                result(driver.cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0))
            }
            "spillmany" => {
                let one = SingleThreadLaunch::of(function, 0);
                result(driver.cuLaunchCooperativeKernelMultiDevice(&one, 1, 0))
            }
            "spillonce" | "spillgrid" | "spillgridasync" => {
                result(driver.cuFuncSetBlockShape(function, 1, 1, 1))?;
                result(match verb {
                    "spillonce" => driver.cuLaunch(function),
                    "spillgrid" => driver.cuLaunchGrid(function, 1, 1),
                    _ => driver.cuLaunchGridAsync(function, 1, 1, 0),
                })
            }
            "spillwrong" => match plain(driver, function, u32::MAX, 0) {
                Err(INVALID_VALUE) => Ok(()),
                other => other.and(Err(-1)),
            },
            "spillnode" => added(driver, function).and_then(|graph| run(driver, graph)),
            "spillif" => conditional(driver, function).and_then(|graph| run(driver, graph)),
            "spillifcopied" => copied(driver, function),
            "spillcaptured" => captured(driver, function).and_then(|graph| run(driver, graph)),
            "spillchanged" => changed(driver, code, function),
            "spillupdated" => updated(driver, code, function),
            // Launch twice, because the second launch takes another path.
            _ => plain(driver, function, 1, 0).and_then(|()| plain(driver, function, 1, 0)),
        };
        done.and(result(driver.cuModuleUnload(code)))
    }
}

fn function(driver: &Driver, module: usize, name: &str) -> Result<usize, i32> {
    let mut function = 0;
    result(driver.cuModuleGetFunction(Some(&mut function), module, name.as_ptr()))?;
    Ok(function)
}

fn plain(driver: &Driver, function: usize, threads: u32, stream: usize) -> Result<(), i32> {
    result(driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, 0, 0))
}

/// A graph with one node.
fn added(driver: &Driver, function: usize) -> Result<usize, i32> {
    node(driver, function).map(|(graph, _)| graph)
}

fn node(driver: &Driver, function: usize) -> Result<(usize, usize), i32> {
    let (mut graph, mut node) = (0, 0);
    let kernel = KernelNode::of(function);
    result(driver.cuGraphCreate(Some(&mut graph), 0))?;
    result(driver.cuGraphAddKernelNode_v2(Some(&mut node), graph, 0, 0, &kernel))?;
    Ok((graph, node))
}

/// A graph with a conditional node whose body has one node.
fn conditional(driver: &Driver, function: usize) -> Result<usize, i32> {
    let (mut graph, mut node, mut handle, mut context) = (0, 0, 0, 0);
    result(driver.cuCtxGetCurrent(Some(&mut context)))?;
    result(driver.cuGraphCreate(Some(&mut graph), 0))?;
    result(driver.cuGraphConditionalHandleCreate(Some(&mut handle), graph, context, 1, 1))?;
    let mut parameters = [0; 32];
    // A conditional node with its handle, type, one body, and the context.
    (parameters[0], parameters[2]) = (13, handle);
    (parameters[3], parameters[5]) = (1 << 32, context as u64);
    result(driver.cuGraphAddNode_v2(Some(&mut node), graph, 0, 0, 0, &mut parameters))?;
    let place: *const usize = std::ptr::with_exposed_provenance(parameters[4] as usize);
    // SAFETY: the driver keeps the node's body graphs there, of which there is one.
    let body = unsafe { place.read() };
    let kernel = KernelNode::of(function);
    result(driver.cuGraphAddKernelNode_v2(Some(&mut node), body, 0, 0, &kernel))?;
    Ok(graph)
}

/// Launches a copy of a graph with a conditional node.
fn copied(driver: &Driver, function: usize) -> Result<(), i32> {
    let graph = conditional(driver, function)?;
    let mut copy = 0;
    result(driver.cuGraphClone(Some(&mut copy), graph))?;
    let done = run(driver, copy);
    done.and(result(driver.cuGraphDestroy(graph)))
}

fn captured(driver: &Driver, function: usize) -> Result<usize, i32> {
    let (mut stream, mut graph) = (0, 0);
    result(driver.cuStreamCreate(Some(&mut stream), 1))?;
    result(driver.cuStreamBeginCapture_v2(stream, 0))?;
    let launched = plain(driver, function, 1, stream);
    result(driver.cuStreamEndCapture(stream, Some(&mut graph)))?;
    result(driver.cuStreamDestroy_v2(stream))?;
    launched.map(|()| graph)
}

fn executable(driver: &Driver, graph: usize) -> Result<usize, i32> {
    let mut exec = 0;
    result(driver.cuGraphInstantiateWithFlags(Some(&mut exec), graph, 0))?;
    Ok(exec)
}

fn run(driver: &Driver, graph: usize) -> Result<(), i32> {
    let done = executable(driver, graph).and_then(|exec| {
        let launched = result(driver.cuGraphLaunch(exec, 0));
        launched.and(result(driver.cuGraphExecDestroy(exec)))
    });
    done.and(result(driver.cuGraphDestroy(graph)))
}

/// Launches an executable graph whose node was changed to another function.
fn changed(driver: &Driver, module: usize, last: usize) -> Result<(), i32> {
    let (graph, node) = node(driver, function(driver, module, "local_8b\0")?)?;
    let exec = executable(driver, graph)?;
    let kernel = KernelNode::of(last);
    let done = result(driver.cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel))
        .and_then(|()| result(driver.cuGraphLaunch(exec, 0)));
    let ended = result(driver.cuGraphExecDestroy(exec));
    done.and(ended).and(result(driver.cuGraphDestroy(graph)))
}

/// Launches an executable graph that was updated to another graph.
fn updated(driver: &Driver, module: usize, last: usize) -> Result<(), i32> {
    let first = added(driver, function(driver, module, "local_8b\0")?)?;
    let (exec, second) = (executable(driver, first)?, added(driver, last)?);
    let done = result(driver.cuGraphExecUpdate_v2(exec, second, &mut [0; 4]))
        .and_then(|()| result(driver.cuGraphLaunch(exec, 0)));
    let ended = result(driver.cuGraphExecDestroy(exec));
    let destroyed = [first, second].map(|graph| result(driver.cuGraphDestroy(graph)));
    destroyed.into_iter().fold(done.and(ended), Result::and)
}
