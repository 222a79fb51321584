//! The objects that a victim holds, in order of creation. A script names an object by its number.

/// One object of the driver.
#[derive(Clone, Copy)]
pub(crate) enum VictimObject {
    /// Linear, pitched or managed memory.
    Plain(u64),
    /// Memory of a pool.
    Pooled(u64),
    /// A reference to physical memory, and its size.
    Handle(u64, usize),
    /// An address range at which physical memory is mapped, and its size.
    Mapping(u64, usize),
    /// A pool.
    Pool(usize),
    /// A module.
    Module(usize),
    /// A launched graph: the executable graph, its source, and the address of an allocation that it left.
    Graph(usize, usize, u64),
    /// A green context.
    Green(usize),
    /// A library.
    Library(usize),
    /// An array, and one with mipmaps.
    Array(usize),
    Mipmaps(usize),
    /// Memory of another process.
    Opened(u64),
    /// It was destroyed.
    Gone,
}

/// All objects.
#[derive(Default)]
pub(crate) struct VictimObjects(Vec<VictimObject>);

impl VictimObjects {
    /// Adds an object and returns its number.
    pub(crate) fn keep(&mut self, object: VictimObject) -> u64 {
        self.0.push(object);
        (self.0.len() - 1) as u64
    }

    /// The object with this number.
    pub(crate) fn get(&self, number: u64) -> VictimObject {
        usize::try_from(number)
            .ok()
            .and_then(|at| self.0.get(at))
            .copied()
            .unwrap_or(VictimObject::Gone)
    }

    /// Marks an object as destroyed.
    pub(crate) fn forget(&mut self, number: u64) {
        if let Some(object) = usize::try_from(number)
            .ok()
            .and_then(|at| self.0.get_mut(at))
        {
            *object = VictimObject::Gone;
        }
    }
}
