"""Pages of HTML: elements, tables, charts and the shell around them. What a page says is its subject's business."""
