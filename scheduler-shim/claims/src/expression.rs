//! Conditions of devices in CEL: compiled once, evaluated with a device.
//!
//! The environment is that of the API server: the standard library, strings, `cel.bind`, quantities, semantic versions
//! and `includes`. An expression that needs anything else is an error with its name, and the claim waits. The API
//! server has bounded the length and the cost of every expression before this code reads it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use cel::common::types::CelBool;
use cel::{Context, Env, Program, Value};

use crate::objects::Device;

mod bind;
mod device_value;
mod quantity_value;
mod semver_value;

/// The longest expression that the API server accepts.
const LONGEST: usize = 10 * 1024;

/// Compiled conditions by their text.
pub(crate) struct CompiledExpressions {
    environment: Arc<Env>,
    compiled: Mutex<HashMap<String, Result<Arc<Program>, String>>>,
}

impl std::fmt::Debug for CompiledExpressions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledExpressions")
            .finish_non_exhaustive()
    }
}

impl Default for CompiledExpressions {
    fn default() -> Self {
        let mut environment = Env::stdlib();
        let extensions = [
            cel::extensions::strings,
            bind::extension,
            device_value::extension,
            quantity_value::extension,
            semver_value::extension,
        ];
        for extension in extensions {
            let added = environment.add_extension(extension);
            added.expect("no two extensions declare the same function");
        }
        Self {
            environment: Arc::new(environment),
            compiled: Mutex::default(),
        }
    }
}

impl CompiledExpressions {
    /// Whether the device of the driver fulfils the condition, or why that is unknown.
    ///
    /// # Errors
    ///
    /// The expression is invalid, or its evaluation failed.
    pub(crate) fn evaluate(
        &self,
        expression: &str,
        driver: &str,
        device: &Device,
    ) -> Result<bool, String> {
        let program = self.compile(expression)?;
        let mut context = Context::with_env(Arc::clone(&self.environment));
        let value = device_value::value(driver, device)?;
        context.add_variable_as_val("device", Box::new(value));
        let result = Value::resolve_val(program.expression(), &context);
        let result = result.map_err(|error| error.to_string())?;
        let truth = result.downcast_ref::<CelBool>().map(|truth| *truth.inner());
        truth.ok_or_else(|| "the result is not a bool".to_owned())
    }

    /// Forgets the conditions that `is_used` does not name.
    pub(crate) fn keep(&self, is_used: impl Fn(&str) -> bool) {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.retain(|text, _| is_used(text));
    }

    fn compile(&self, expression: &str) -> Result<Arc<Program>, String> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = compiled.get(expression) {
            return known.clone();
        }
        if expression.len() > LONGEST {
            return Err(format!("the expression is longer than {LONGEST} bytes"));
        }
        let program = self.environment.compile(expression);
        let program = program
            .map(Arc::new)
            .map_err(|errors| errors.to_string().trim().replace('\n', " "));
        compiled.insert(expression.to_owned(), program.clone());
        program
    }
}

/// The domain and the name of an attribute or a capacity.
fn qualified<'a>(name: &'a str, driver: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((driver, name))
}

/// Groups named things by their domain.
fn by_domain<'a, T>(
    named: &'a BTreeMap<String, T>,
    driver: &'a str,
) -> BTreeMap<&'a str, Vec<(&'a str, &'a T)>> {
    let mut domains: BTreeMap<&str, Vec<(&str, &T)>> = BTreeMap::new();
    for (name, one) in named {
        let (domain, local) = qualified(name, driver);
        domains.entry(domain).or_default().push((local, one));
    }
    domains
}

#[cfg(test)]
mod tests;
