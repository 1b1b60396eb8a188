"""Pages of HTML: elements, tables, charts and the shell around them. The packages of the subjects fill the pages."""
