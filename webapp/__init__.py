"""The dashboard: a page to select a model, devices and techniques and to see their bounds.

`state` holds the inputs of the page and its link; `results` analyzes it; `views` are pure functions of those;
`tabs` render the views; `app` connects controls, tabs and link. Only `tabs`, `controls`, `page`, `options` and `app`
use Dash.
"""
