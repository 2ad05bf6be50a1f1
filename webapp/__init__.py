"""The dashboard: a page on which a model, devices and techniques are chosen and what bounds them is seen.

`state` is what the page is asked, and its link; `answers` turns it into analyses; `views` are pure functions of those;
`tabs` put views on the page; `app` joins controls, tabs and link. Only `tabs`, `controls` and `app` know of Dash.
"""
