/** Entry point `berth/client`. */
export { type ErrorCode, OperatorError } from '../errors.ts';
export { CLASSES, type Class } from '../plan/model.ts';
export type { Description } from '../workflows/messages.ts';
export {
  BerthClient,
  type BerthClientOptions,
  type PendingStep,
  type WishAnswer,
  type WorkflowState,
  type WorkspaceDescription,
} from './client.ts';
