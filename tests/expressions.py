"""Which labels the result of an expression has, so that one that nothing exports is found before it returns nothing.

A label that is misspelt is no error in PromQL: it matches nothing, or groups everything into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import promql_parser as promql

TARGET_LABELS = frozenset({"job", "instance"})  # Prometheus gives them to every series that it scrapes
SCALAR: frozenset[str] = frozenset()


def labels_of(expression: str, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the labels of the result; `series` are the labels of each series that there is, by name.

    Raises:
        ValueError: it doesn't parse, names a series that isn't there, or a label that its operand doesn't have.
    """
    return _labels(promql.parse(expression), series)


def names_in(expression: str) -> set[str]:
    """Return the names of the series that an expression asks for."""
    return set(_names(promql.parse(expression)))


def _names(node: promql.Expr) -> Iterator[str]:
    match node:
        case promql.VectorSelector():
            assert node.name is not None
            yield node.name
        case promql.MatrixSelector():
            yield from _names(node.vector_selector)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr() | promql.AggregateExpr():
            yield from _names(node.expr)
        case promql.Call():
            for argument in node.args:
                yield from _names(argument)
        case promql.BinaryExpr():
            yield from _names(node.lhs)
            yield from _names(node.rhs)


def _labels(node: promql.Expr, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    match node:
        case promql.NumberLiteral() | promql.StringLiteral():
            return SCALAR
        case promql.VectorSelector():
            return _selected(node, series)
        case promql.MatrixSelector():
            return _selected(node.vector_selector, series)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return _labels(node.expr, series)
        case promql.AggregateExpr():
            return _aggregated(node, series)
        case promql.Call():
            found = [_labels(argument, series) for argument in node.args]
            return frozenset().union(*found)
        case promql.BinaryExpr():
            return _joined(node, series)
    raise ValueError(f"{type(node).__name__} is not known here")


def _selected(node: promql.VectorSelector, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if node.name is None or node.name not in series:
        raise ValueError(f"nothing exports {node.name}")
    labels = series[node.name]
    _check({matcher.name for matcher in node.matchers.matchers}, labels, node)
    return labels


def _aggregated(node: promql.AggregateExpr, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    labels = _labels(node.expr, series)
    if node.modifier is None:
        return SCALAR
    named = frozenset(node.modifier.labels)
    _check(named, labels, node)
    return named if node.modifier.type == promql.AggModifierType.By else labels - named


def _joined(node: promql.BinaryExpr, series: Mapping[str, frozenset[str]]) -> frozenset[str]:
    left, right = _labels(node.lhs, series), _labels(node.rhs, series)
    modifier = node.modifier
    if modifier is not None and modifier.matching is not None:
        named = frozenset(modifier.matching.labels)
        _check(named, left, node)
        _check(named, right, node)
        if modifier.matching.type == promql.LabelModifierType.Include and _is_one_to_one(modifier):
            return named
    brought = frozenset((modifier.group_labels if modifier is not None else None) or ())
    match str(node.op):
        case "or":
            return left | right
        case "and" | "unless":
            return left
    if modifier is not None and modifier.card == promql.VectorMatchCardinality.OneToMany:
        _check(brought, left, node)
        return right | brought
    _check(brought, right, node)
    return (left | brought) or right


def _is_one_to_one(modifier: promql.BinModifier) -> bool:
    return bool(modifier.card == promql.VectorMatchCardinality.OneToOne)


def _check(named: frozenset[str] | set[str], there: frozenset[str], node: promql.Expr) -> None:
    if missing := named - there:
        raise ValueError(f"{sorted(missing)} is no label of {node.prettify()}; it has {sorted(there)}")
