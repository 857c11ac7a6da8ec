/* Clientside callbacks and everything that moves: live rows, crosshair, theme of charts, ages. */
