//! The macro `cel.bind(name, value, expression)`.

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env};

/// The name that the macro is called on.
const NAMESPACE: &str = "cel";

pub(super) fn extension(environment: &mut Env) -> Result<(), DeclarationError> {
    environment.add_macro(Macro::receiver("bind", 3, expand))
}

/// A comprehension over nothing: its result sees the value under the name.
fn expand(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    if !target
        .as_ref()
        .is_some_and(|target| matches!(&target.expr, Expr::Ident(name) if name == NAMESPACE))
    {
        return Ok(None);
    }
    let Some(Expr::Ident(name)) = arguments.first().map(|name| &name.expr) else {
        return Ok(None);
    };
    let name = name.clone();
    let (Some(result), Some(value)) = (arguments.pop(), arguments.pop()) else {
        return Ok(None);
    };
    let bound = ComprehensionExpr {
        iter_range: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.clone(),
        accu_init: value,
        loop_cond: helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: helper.next_expr(Expr::Ident(name)),
        result,
    };
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(bound)))))
}
