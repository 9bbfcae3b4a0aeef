"""Every picture that result files give: `hpcfed plot`. Which there are is in `registry`."""
