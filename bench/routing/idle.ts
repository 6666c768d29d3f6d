/** A process that does nothing but measure its own pauses: what the machine itself costs, beside what is measured. */
import { tell } from './child.ts';
import { measurePauses } from './pauses.ts';

let pauses = measurePauses();
process.on('message', (message) => {
  if (message === 'read') tell(pauses());
  pauses = measurePauses();
});
process.on('disconnect', () => process.exit(0));
tell({ ready: true });
